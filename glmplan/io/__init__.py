"""Foreign files as records: models, machines and runs."""
