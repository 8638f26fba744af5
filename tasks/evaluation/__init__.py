"""The parts of the stage evaluate_model: load models, run forward passes, compute metrics, draw plots, generate texts."""
