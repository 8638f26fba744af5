"""What a pass costs, by the usual count: two FLOPs a weight and token, and attention's products."""

from __future__ import annotations

from tasks.artifact import Meta
from tasks.training.config import TrainConfig
from tasks.training.model import Built

# dense bf16 FLOPs per second of a device, by a part of its name, as published
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}


def flops_per_row(built: Built, length: int) -> int:
    """Of one forward pass over a row of `length` tokens; the backward pass costs twice that."""
    config = built.model.config.get_text_config()
    layers, width = config.num_hidden_layers, config.hidden_size
    embeddings = {id(module.weight) for module in built.model.modules() if type(module).__name__ == "Embedding"}
    head = built.model.get_output_embeddings()
    weights = sum(p.numel() for p in built.parameters().values() if id(p) not in embeddings)
    if head is not None and id(head.weight) in embeddings:  # a tied head multiplies all the same
        weights += head.weight.numel()
    return int(length * (2 * weights + 4 * layers * width * length))


def state_bytes(config: TrainConfig, built: Built) -> int:
    """Of parameters, moments and gradients on all devices together, were nothing replicated."""
    count = sum(p.numel() for p in built.parameters().values())
    compute = 2 if config.dtype == "bfloat16" else 0
    return int(count * (4 * 4 + compute))


def mfu(flops_per_second: float, device_kind: str, devices: int) -> Meta:
    """{"mfu": share of the devices' peak} where the peak is known."""
    peak = next((peak for name, peak in PEAKS.items() if name in device_kind), None)
    return {"mfu": flops_per_second / (peak * devices)} if peak else {}
