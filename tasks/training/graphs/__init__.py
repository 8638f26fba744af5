"""The graphs of a training run: listing them, compiling them for Trainium, keeping torch.compile's cache, counting FLOPs."""
