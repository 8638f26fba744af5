"""The parts of the stage export_neuron: writing and reading StableHLO files, calling AWS's Neuron exporters, and comparing
an exported model with PyTorch."""
