"""Recipes: their schema, how YAML files and overrides are read and merged, and errors that name the file and line of a
setting."""
