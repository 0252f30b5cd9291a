"""Links of a host, collectives over them, placement, and transfers that share a link."""
