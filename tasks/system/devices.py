"""The device that computes, and processor cores: a result's last bits can depend on both."""

from __future__ import annotations

import os
import platform
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Set the number of threads of torch and numpy."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_kind(device: str) -> str:
    """Return the kind of device, such as `cpu x86_64`; for `cuda` the first GPU's model, `cuda` without a driver."""
    if device != "cuda":
        return f"{device} {platform.machine()}"
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        return next(
            (line.partition(":")[2].strip() for line in file.read_text().splitlines() if "Model:" in line), "cuda"
        )
    return "cuda"
