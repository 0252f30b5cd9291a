"""Time of one engine step: structure, kernel work, and the model that adds the host and the engine."""
