"""Count the floating-point operations (FLOPs) of a forward pass, and compare a speed with the peak of the device.

Counted are two operations for each token and each weight, and the matrix products of attention. The weights of an
embedding table count only if the table is also the output layer.
"""

from __future__ import annotations

from trnflow.tasks.artifact import Meta
from trnflow.tasks.training.shared_types import Built

# FLOPs per second of a device at half precision (bf16; V100: fp16), dense, by a part of its name; the first match
# counts. NVIDIA's data sheets of H200 (989, SXM and NVL 835), H100 (989 SXM, 835 NVL, 756 PCIe), A100 (312) and V100
# (125 SXM2), which quote sparse figures for Hopper, halved here; AWS Neuron's "Trainium Architecture": 190 a chip of
# two cores.
PEAKS = {
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "V100-SXM2": 125e12,
    "trn1": 95e12,
}


def flops_per_row(built: Built, length: int) -> int:
    """Return the number of floating-point operations (FLOPs) of one forward pass over a row of `length` tokens. A
    backward pass, which is not counted here, costs twice as many if all parameters are trained."""
    config = built.model.config.get_text_config()
    layers, width = config.num_hidden_layers, config.hidden_size
    embeddings = {id(module.weight) for module in built.model.modules() if type(module).__name__ == "Embedding"}
    head = built.model.get_output_embeddings()
    weights = sum(p.numel() for p in built.parameters().values() if id(p) not in embeddings)
    if head is not None and id(head.weight) in embeddings:  # a tied head also has a product
        weights += head.weight.numel()
    return int(length * (2 * weights + 4 * layers * width * length))


def mfu(flops_per_second: float, device_kind: str, devices: int) -> Meta:
    """Return the model FLOPs utilization (MFU) of a training as {"mfu": share}: `flops_per_second` divided by the peak
    speed of all devices together. Return {} when the peak of this kind of device is not in the table `PEAKS` (A100,
    H100, H200, V100 and Trainium 1).

    flops_per_second: the speed that was measured, of all devices together; device_kind: the device's name, such as
    "NVIDIA H200"; devices: the number of devices."""
    peak = next((peak for name, peak in PEAKS.items() if name in device_kind), None)
    return {"mfu": flops_per_second / (peak * devices)} if peak else {}
