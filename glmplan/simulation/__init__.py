"""Schedules of requests, no physics: the simulator, closed loops, safe loads and their records."""
