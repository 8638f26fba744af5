"""Recipes: their schema, how files and overrides are read and merged, and errors that name file and line."""
