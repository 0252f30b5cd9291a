"""What engines do by themselves: defaults, options, packing, kernels, memory rules and walls."""
