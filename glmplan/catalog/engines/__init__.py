"""Facts of engines: defaults, options, kernels, memory and limitations."""
