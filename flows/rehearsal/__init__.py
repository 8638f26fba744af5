"""Rehearse a recipe: every stage on a few rows with a small model, in a store that is removed afterwards."""
