"""The catalogues of models, accelerators and hosts, and the names that people give to their entries."""
