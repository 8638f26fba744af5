"""Modules of the stage `load_data`: reading each file format, choosing columns and labels, making splits, finding
duplicate rows, limiting the number of rows, and mixing data sets.
"""
