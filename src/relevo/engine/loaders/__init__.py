"""Model files: GGUF, Hugging Face folders, hub ids and the packaged small model, read as named tensors."""
