"""Fits of links and collectives to measured transfers."""
