"""Recipes, the YAML files that describe runs: their schema, how files and overrides from the command line are read and
merged, and errors that name the file and line of a setting."""
