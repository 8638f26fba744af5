"""Resolve paths, URLs and hub names of a recipe to exact bytes, before any stage runs."""
