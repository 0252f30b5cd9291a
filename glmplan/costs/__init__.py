"""Bytes, FLOP and seconds as formulas over arrays; the packages mirror `docs/physics`."""
