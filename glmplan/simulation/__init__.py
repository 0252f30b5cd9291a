"""Schedules of requests: simulator, closed loops, safe loads, records."""

from glmplan.simulation.compiled import prefer_compiled

prefer_compiled()
