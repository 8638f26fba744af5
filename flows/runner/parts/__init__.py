"""Divide the work of a stage into parts, such as 2 MiB of text that tokenize_text tokenizes. Each part is taken from
the store if it was made before, or is made: in threads of the stage's process or on Prefect's task runners."""
