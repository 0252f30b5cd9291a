"""Other people's files as records: models, machines and runs."""
