"""Batches of training rows: choosing the rows, reading them, and reading the next batch while a step runs."""
