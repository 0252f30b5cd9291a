"""Weights in host memory: work on the host, streaming, and their time."""
