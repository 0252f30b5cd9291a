"""Bytes, FLOP and seconds as formulas over arrays, in rooms that mirror `docs/physics`."""
