"""Name the device that computes, and count processor cores: the last bits of a result can depend on both."""

from __future__ import annotations

import os
import platform
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""The environment variables that set the number of threads of torch and numpy."""


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_kind(device: str) -> str:
    """Return what kind of device computes. For `cpu` and `neuron` this is the name with the machine's processor
    architecture, such as `cpu x86_64`; for `cuda` it is the model of the first GPU, as the driver names it, or `cuda`
    if there is no driver.

    device: `cpu`, `cuda` or `neuron`."""
    if device != "cuda":
        return f"{device} {platform.machine()}"
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        return next(
            (line.partition(":")[2].strip() for line in file.read_text().splitlines() if "Model:" in line), "cuda"
        )
    return "cuda"
