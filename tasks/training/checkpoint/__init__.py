"""Checkpoints: writing them while training goes on, reading them for any mesh (number of replicas and of tensor
parallel devices), and building the whole model's weights from them."""
