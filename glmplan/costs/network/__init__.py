"""Links of a host, collectives, placement, and transfers that share a link."""
