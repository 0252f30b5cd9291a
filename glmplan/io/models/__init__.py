"""Models from a name, `config.json`, safetensors or GGUF files."""
