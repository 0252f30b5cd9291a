"""Bytes, FLOP and seconds as formulas over arrays.

The packages mirror `docs/physics`.
"""
