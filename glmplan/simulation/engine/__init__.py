"""Engines as schedulers: admission, batches, caches of prefixes, and the loops that run them."""
