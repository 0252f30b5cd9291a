"""Weights in host memory: what is computed there, what is streamed, and how long it takes."""
