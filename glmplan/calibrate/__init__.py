"""Fits: from measurements that ship, or that one site made, to the constants that the formulas need."""
