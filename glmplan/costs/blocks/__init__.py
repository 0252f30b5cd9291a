"""Blocks of a layer, one file for each kind: tensors, cache and work."""
