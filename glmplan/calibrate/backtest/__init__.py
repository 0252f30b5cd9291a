"""Errors on held-out runs, and changes between two fits."""
