"""Run the stages of a pipeline: look up each stage's key in the store, run a stage whose artifact is missing, publish it.

The package `planning` finds out what a run would do; the package `parts` divides the work of a stage among workers.
"""
