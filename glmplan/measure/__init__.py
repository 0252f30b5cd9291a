"""Measuring: a live client for serving engines, and importers for other tools' results."""
