"""Modules of the stage `load_data`: readers for each file format, columns and labels, splits, duplicates, limits and
mixtures.
"""
