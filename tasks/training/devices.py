"""Whether the device that a recipe names is there, and what it is."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from tasks.errors import MissingDependency, ModelError
from tasks.training.config import TrainConfig


def check_device(config: TrainConfig) -> None:
    """MissingDependency without the Neuron compiler, ModelError without the device."""
    if config.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ModelError(
                "train.device is cuda, and torch finds no GPU here", "set train.device=cpu, or check the driver"
            )
        if torch.cuda.device_count() < config.devices:
            raise ModelError(
                f"train.devices is {config.devices}, and torch finds {torch.cuda.device_count()} GPUs here",
                "set train.devices to what is there",
            )
    if config.compile and importlib.util.find_spec("setuptools") is None:
        raise MissingDependency(
            "train.compile is set, and torch.compile needs setuptools (and a C++ compiler), which is not installed",
            "pip install setuptools, or set train.compile=false",
        )
    if config.device == "neuron" and importlib.util.find_spec("libneuronxla") is None:
        raise MissingDependency(
            "train.device is neuron, and the Neuron compiler and runtime are not installed",
            "on a trn1 or trn2 instance install neuronx-cc, libneuronxla and torch-neuronx from AWS's Neuron package index "
            "(Neuron SDK 2.28 or 2.29), or set train.device=cpu",
        )


def known_memory(config: TrainConfig) -> int | None:
    """Bytes each device has, as far as it can be told without torch: as the recipe says; of the CPU's devices each one's share of
    what this machine, or its control group, has."""
    if config.device_memory_gib is not None:
        return int(config.device_memory_gib * 2**30)
    if config.device != "cpu":
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_group_limits()]) // config.devices


def device_memory(config: TrainConfig) -> int | None:
    """`known_memory`, and of a GPU what torch finds."""
    known = known_memory(config)
    if known is not None or config.device != "cuda":
        return known
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)


def device_name(config: TrainConfig) -> str:
    """What the device calls itself, such as "NVIDIA H200"; for neuron the machine's kind, such as "trn1.2xlarge"."""
    if config.device == "neuron":
        return _product() or config.device
    if config.device != "cuda":
        return config.device
    import torch

    return str(torch.cuda.get_device_name())


def _group_limits() -> list[int]:
    """Bytes, of control groups of either version."""
    files = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    found = [file.read_text().strip() for file in files if file.is_file()]
    return [int(text) for text in found if text.isdecimal()]


def _product() -> str:
    """What the firmware says that this machine is: on EC2 the instance type."""
    try:
        return Path("/sys/devices/virtual/dmi/id/product_name").read_text().strip()
    except OSError:
        return ""
