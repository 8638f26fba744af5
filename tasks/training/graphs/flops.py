"""Count a forward pass's FLOPs: two a token and weight, and attention's products. An embedding counts only if it is the
output layer too."""

from __future__ import annotations

import re

from trnflow.tasks.artifact import Meta
from trnflow.tasks.training.shared_types import Built

# FLOPs per second of a device at half precision (bf16; V100: fp16), dense, by a part of its name; the first match
# counts. NVIDIA's data sheets of H200 (989, SXM and NVL 835), H100 (989 SXM, 835 NVL, 756 PCIe), A100 (312),
# L4 (121), T4 (65, fp16) and V100 (125 SXM2), which quote sparse figures for Hopper and L4, halved here; AWS
# Neuron's "Trainium Architecture": 190 a chip of two cores.
PEAKS = {
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L4": 121e12,
    "T4": 65e12,
    "V100-SXM2": 125e12,
    "trn1": 95e12,
}


def flops_per_row(built: Built, length: int) -> int:
    """Return the FLOPs of a forward pass over `length` tokens; a backward pass of all parameters costs twice as many."""
    config = built.model.config.get_text_config()
    layers, width = config.num_hidden_layers, config.hidden_size
    embeddings = {id(module.weight) for module in built.model.modules() if type(module).__name__ == "Embedding"}
    head = built.model.get_output_embeddings()
    weights = sum(p.numel() for p in built.parameters().values() if id(p) not in embeddings)
    if head is not None and id(head.weight) in embeddings:  # a tied head also has a product
        weights += head.weight.numel()
    return int(length * (2 * weights + 4 * layers * width * length))


def mfu(flops_per_second: float, device_kind: str, devices: int) -> Meta:
    """Return {"mfu": measured speed / peak of all devices}; {} for a device not in PEAKS."""
    # an L40S is no L4
    peak = next((peak for name, peak in PEAKS.items() if re.search(rf"{name}\b", device_kind)), None)
    return {"mfu": flops_per_second / (peak * devices)} if peak else {}
