"""Blocks of a layer, one file for each kind: tensors, splits, cache and work."""
