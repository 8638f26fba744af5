"""Training: the loop, the model, the two engines, batches, optimizers, checkpoints and the memory estimate."""
