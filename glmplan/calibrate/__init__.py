"""Fit the constants of the formulas to measurements.

The measurements ship, or one site made them.
"""
