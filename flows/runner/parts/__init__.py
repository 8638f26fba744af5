"""Divide the work of a stage into parts, such as 2 MiB of text that tokenize_text tokenizes. A part whose result is in
the store is taken from there. The other parts are made, in threads of the stage's process or by Prefect's task
runners."""
