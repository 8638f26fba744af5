"""The devices that a recipe names: presence, name, memory."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from trnflow.tasks.errors import MissingDependency, ModelError
from trnflow.tasks.system.gpus import usable_gpus
from trnflow.tasks.system.memory import machine_memory
from trnflow.tasks.system.optional_packages import require_bitsandbytes, require_torch_xla
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.device_kinds import KINDS

NEURON_PACKAGES = ("libneuronxla", "neuronx-cc", "torch-neuronx")
INSTALL_NEURON = (
    "install neuronx-cc, libneuronxla and torch-neuronx from AWS's Neuron package index (Neuron SDK 2.28 or 2.29)"
)
NEURON_DEVICES = Path("/sys/devices/virtual/neuron_device")
"""Where Neuron's driver describes its devices (AWS Neuron, "Neuron Sysfs User Guide")."""


def check_device(config: TrainConfig) -> None:
    """Raise MissingDependency when a package is missing, ModelError when there are too few devices."""
    if config.compile and importlib.util.find_spec("setuptools") is None:
        raise MissingDependency(
            "train.compile is set, and torch.compile needs setuptools (and a C++ compiler), which is not installed",
            "pip install setuptools, or set train.compile=false",
        )
    check_torch_xla(config)
    check_bitsandbytes(config)
    if config.by_neuronx_cc:
        check_neuron(config)
    kind = KINDS[config.device]
    if config.engine == "native":
        kind.check(config.devices)
    if not kind.supports(config.dtype):
        raise ModelError(
            f"train.dtype is {config.dtype}, in which {kind.label()} does not compute",
            "set train.dtype=float16 (engine native), or float32",
        )


def check_torch_xla(config: TrainConfig) -> None:
    """Raise MissingDependency when engine xla lacks torch_xla."""
    if config.engine == "xla":
        require_torch_xla("train.engine is xla", "train.engine=native (--on cpu, --on gpu)")


def check_torch_neuron(config: TrainConfig) -> None:
    """Raise MissingDependency when engine native is to drive Neuron, and no package adds it to torch."""
    if config.device == "neuron" and config.engine == "native" and not entry_points(group="torch.backends"):
        raise MissingDependency(
            "train.engine is native and train.device neuron, and no installed package adds Neuron to torch",
            "set train.engine=xla, or install AWS's TorchNeuron",
        )


def check_bitsandbytes(config: TrainConfig) -> None:
    """Raise MissingDependency when a setting lacks bitsandbytes."""
    if config.lora is not None and config.lora.base_dtype == "nf4":
        require_bitsandbytes("train.lora.base_dtype is nf4")
    if config.optimizer == "adamw_8bit":
        require_bitsandbytes("train.optimizer is adamw_8bit")


def cautions(config: TrainConfig) -> list[str]:
    """Return the warnings to show before training, such as of an experimental mode."""
    if config.engine == "xla" and config.device == "neuron" and config.xla_processes == "one" and config.devices > 1:
        return ["train.xla_processes=one drives all NeuronCores by SPMD, which is experimental and was never run there"]
    return []


def known_memory(config: TrainConfig) -> int | None:
    """Return a device's bytes of memory without torch: the setting, on cpu the machine's or cgroup's; else None."""
    if config.device_memory_gib is not None:
        return int(config.device_memory_gib * 2**30)
    if config.device != "cpu":
        return None
    return machine_memory() // config.devices


def device_memory(config: TrainConfig) -> int | None:
    """Return bytes of memory a device: `known_memory`, else what torch reports of a GPU, else None."""
    return known_memory(config) or KINDS[config.device].memory()


def check_gpu(environ: Mapping[str, str], section: str = "train", devices: int = 1) -> None:
    """Raise ModelError if there are fewer usable GPUs here, without asking torch, whose import takes seconds.

    environ: `launch.environment`, which a stage's process has beside this one's; section: of the recipe."""
    usable = usable_gpus({**os.environ, **environ})
    if not usable.gpus:
        raise ModelError(f"{section}.device is cuda, and {usable.why}", f"set {section}.device=cpu, or --on cpu")
    if len(usable.gpus) < devices:
        raise ModelError(
            f"train.devices is {devices}, and there are {len(usable.gpus)} GPUs here", "lower train.devices"
        )


def check_neuron(config: TrainConfig) -> None:
    """Raise MissingDependency without AWS's packages, ModelError when there are too few NeuronCores."""
    versions = {name: _version(name) for name in NEURON_PACKAGES}
    for name, number in versions.items():
        if number is not None and (number == "1.0" or number.startswith("1.0.post")):
            raise MissingDependency(
                f"train.device is neuron, and {name} {number} is PyPI's empty placeholder package, not AWS's",
                f"pip uninstall {name}, and {INSTALL_NEURON}",
            )
    lacking = [name for name, number in versions.items() if number is None]
    if lacking:
        raise MissingDependency(
            "train.device is neuron, and the Neuron compiler and runtime are incomplete: "
            f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed",
            f"on a trn1 or trn2 instance {INSTALL_NEURON}, or set train.device=cpu",
        )
    cores = _neuron_cores()
    if cores is not None and cores < config.devices:
        raise ModelError(
            f"train.devices is {config.devices}, and there are {cores} NeuronCores here ({NEURON_DEVICES})",
            "lower train.devices, or check Neuron's driver" if cores else "set train.device=cpu",
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _neuron_cores() -> int | None:
    """Return the number of logical NeuronCores, or None."""
    cores = 0
    for device in NEURON_DEVICES.glob("neuron[0-9]*"):
        count = _line(device / "core_count")
        if not count.isdecimal():
            return None
        # on Trn2 and Trn3 a logical core is two physical ones, unless the variable says else
        paired = _line(device / "info" / "architecture" / "instance_type").lower().startswith(("trn2", "trn3"))
        cores += int(count) // int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", 2 if paired else 1))
    return cores


def _line(file: Path) -> str:
    """Return a file's text; "" if it can't be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
