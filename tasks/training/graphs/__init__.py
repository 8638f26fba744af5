"""The graphs of a training run, that is the programs that its devices run: listing them, compiling them for Trainium,
keeping torch.compile's cache, counting FLOPs.
"""
