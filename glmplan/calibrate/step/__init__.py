"""Fit the step time jointly over all runs.

Observations, solution, errors, intervals.
"""
