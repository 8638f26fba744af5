"""The parts of evaluate_model: load models, run forward passes, compute metrics, draw plots, generate texts."""
