"""One kind of block, one file: its tensors, how they are cut, its cache and its work."""
