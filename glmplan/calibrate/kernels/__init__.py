"""Fits of single kernels to measured tables, part by part."""
