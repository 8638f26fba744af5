"""Batches of training rows: choosing the rows, reading them, and reading ahead of the training loop."""
