"""Engine native: plain PyTorch on CPUs and GPUs, with one process a device."""
