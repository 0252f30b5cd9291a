"""Frozen records of the data files, validated when they are read."""
