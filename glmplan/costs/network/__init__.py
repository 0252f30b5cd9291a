"""Links of a host, collectives, placement, and shared links."""
