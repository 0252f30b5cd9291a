"""Traffic and its SLO: arrivals, traces, requests."""
