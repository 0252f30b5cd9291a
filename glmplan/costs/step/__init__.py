"""The time of one engine step: structure, work, collectives, the host's part, and their sum."""
