"""Run the stages of a pipeline. Each stage's key is looked up in the store. If the store has no artifact (result) for
the key, the stage is run, and its artifact is published: put on record in the store, where later runs find it.

A stage's key is the hash of everything that decides its result: code, settings, inputs, library versions. The package
`planning` finds out what a run would do; the package `parts` divides the work of a stage among workers.
"""
