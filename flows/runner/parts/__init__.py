"""Divide the work of a stage into parts. Each part is taken from the store or made, in threads or on Prefect's task
runners."""
