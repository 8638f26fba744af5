"""The machine: the home folder, private files, threads, processes, compiler flags, and secrets in texts.

Imports nothing of this project but `tasks.errors`.
"""
