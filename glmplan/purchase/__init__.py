"""What to buy or rent: sweeps, sizes, costs, comparisons and portfolios, on the questions of `glmplan`."""
