"""Models, accelerators, hosts and prices, and their names elsewhere."""
