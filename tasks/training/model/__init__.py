"""The model under training: building it, LoRA, attention and its masks, dropout."""
