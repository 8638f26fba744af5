"""Compute which part of each parameter, and of its optimizer state, each rank (process of the training) holds."""
