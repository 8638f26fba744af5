"""The devices of engine xla: how they are started, and how often XLA compiled for them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch_xla
import torch_xla.debug.metrics as metrics
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig


def start_devices(config: TrainConfig) -> tuple[Any, Any]:
    """Start XLA's devices. Return (torch's XLA device, torch_xla's mesh of all devices under SPMD, else None).

    Raises ModelError when XLA finds other numbers of devices or processes than `config` asks for.
    """
    # no backward pass may run before this, not even on "meta": autograd counts the devices at the first one
    alone = config.xla_processes == "one"
    if alone and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ModelError(
            "engine xla drives all devices from one process, and WORLD_SIZE says there are several",
            "start one process (not torchrun) and set train.devices",
        )
    if alone and config.devices > 1:
        xr.use_spmd()
    count = xr.global_runtime_device_count()
    if count != config.devices:
        raise ModelError(
            f"train.devices is {config.devices}, and XLA has {count} on {config.device}", "lower train.devices"
        )
    device = torch_xla.device()
    if config.devices == 1 or not alone:
        return device, None
    return device, xs.Mesh(np.arange(count), tuple(config.mesh[:2]), ("data", "model"))


def compile_count() -> int:
    """Return how many graphs XLA has compiled in this process."""
    return metrics.counter_value("UncachedCompile") or 0
