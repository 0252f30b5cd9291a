"""Entries of models, accelerators, hosts and prices, and names used for them elsewhere."""
