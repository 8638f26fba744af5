"""Optimizers: learning rates, AdamW, Adafactor, stochastic rounding."""
