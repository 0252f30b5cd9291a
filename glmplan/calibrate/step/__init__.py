"""The joint fit of the step time over all runs: observations, solution, errors, intervals."""
