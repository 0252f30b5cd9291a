"""Single kernels: work counts, fitted utilisation, and the slots of their times."""
