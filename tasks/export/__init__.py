"""The parts of the stage export_neuron, which exports a trained model for inference: writing and reading StableHLO
files, calling AWS's Neuron exporters, and comparing an exported model with PyTorch."""
