"""Time of one engine step: structure, kernel work, host and engine."""
