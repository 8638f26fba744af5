"""The training loop and what it stands on: model, plan, engines, batches, optimizer, checkpoints."""
