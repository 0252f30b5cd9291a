"""What users send and what they are promised: arrivals, traces, requests."""
