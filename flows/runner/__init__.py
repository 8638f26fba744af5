"""Run the stages of a pipeline: look up each stage's key in the store, run a stage whose artifact is missing, publish it.

A stage's key is the hash of everything that decides its result: code, settings, inputs, library versions. The package
`planning` finds out what a run would do; the package `parts` divides the work of a stage among workers.
"""
