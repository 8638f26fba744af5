"""Checkpoints: writing them while training goes on, reading them for any mesh, and building the whole model's weights
from them.
"""
