"""Access to the machine: the home folder, private files, threads, processes and compiler flags; and the removal of
secrets from texts.

Imports nothing of this project but `trnflow.tasks.errors`.
"""
