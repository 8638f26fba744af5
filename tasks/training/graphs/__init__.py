"""The graphs of a training: list, compile for Trainium, keep torch.compile's cache, count FLOPs."""
