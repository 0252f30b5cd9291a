"""Buy or rent: sweeps, sizes, costs, comparisons and portfolios."""
