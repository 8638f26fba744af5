"""Checkpoints: write them beside training, read them on any mesh, build the whole model's weights."""
