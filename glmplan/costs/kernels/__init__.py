"""Single kernels: work counts, fitted utilisation and time components."""
