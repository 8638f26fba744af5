"""How the tensors of a checkpoint are named: apart, so that what reads checkpoints is not keyed by the engines."""

PARAMETER, FIRST, SECOND = "parameter/", "first/", "second/"
"""Prefixes: of the parameters, and of their first and second moments."""

ROW, COLUMN = "row/", "column/"
"""Of Adafactor's second moments, averaged over a parameter's last dimension, and over the one before it."""
