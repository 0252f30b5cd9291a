"""Engines as schedulers: admission, batches, prefix caches, event loops."""
