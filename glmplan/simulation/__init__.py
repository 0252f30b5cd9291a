"""Schedules of requests, no physics: the simulator, closed loops, safe loads and their records."""

from glmplan.simulation.compiled import prefer_compiled

prefer_compiled()
