"""The tasks that models learn: one module for each, entered in `registry.py`. Stages ask the task, never for its name."""
