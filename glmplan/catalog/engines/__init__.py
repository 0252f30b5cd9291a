"""Behaviour of engines: defaults, options, packing, kernels, memory rules and limitations."""
