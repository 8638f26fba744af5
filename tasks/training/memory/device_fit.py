"""Fit training to the device's memory: choose the number for `micro_batch: auto`, and refuse a training that needs more
memory.
"""

from __future__ import annotations

from functools import cache

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.devices import device_memory
from trnflow.tasks.training.memory.estimate import Memory, check_memory
from trnflow.tasks.training.memory.micro_batch import largest_fitting
from trnflow.tasks.training.memory.probe import can_probe, fits
from trnflow.tasks.training.memory.traced_memory import Untraceable, trace_memory


def fit_to_device(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> tuple[TrainConfig, Memory | None]:
    """Choose the number for `micro_batch: auto` (the rows of a forward pass), and check that training fits the device.
    Return (the config with `auto` replaced by the number, the memory that training takes on one device).

    The memory is an estimate, from a pass on tensors without values. It is None, and a warning is given, when the model
    needs the values of tensors. With engine native on one device the number for `auto` is also tested by two real
    updates. out: where messages and temporary files go. Raise ModelError when training needs more memory than the
    device has."""
    limit = device_memory(config)
    _start_xla(config)

    def runs(candidate: TrainConfig) -> bool:
        return not can_probe(candidate) or fits(candidate, model, packed, limit, out)

    @cache
    def memory_of(micro_batch: int) -> Memory | None:
        try:
            return trace_memory(config.with_micro_batch(micro_batch), model, packed.meta)
        except Untraceable as error:
            out.warn(error.message)
            return None

    found = largest_fitting(config, lambda candidate: memory_of(candidate.replica_batch), limit, runs)
    if config.micro_batch == "auto":
        out.info(f"micro_batch auto is {found.replica_batch}, accumulated {found.accumulation} times")
    memory: Memory | None = memory_of(found.replica_batch)
    if memory is not None:
        check_memory(found, memory, limit)
    return found, memory


def _start_xla(config: TrainConfig) -> None:
    """Start XLA's virtual devices on the CPU. They must exist before the first backward pass in this process, or later
    backward passes on XLA fail. Does nothing for device neuron, whose graphs another process traces."""
    if config.engine == "xla" and config.device == "cpu":
        from trnflow.tasks.training.xla.devices import start_devices

        start_devices(config)
