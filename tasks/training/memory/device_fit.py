"""Fit training to the device's memory: resolve `micro_batch: auto`, refuse what needs more."""

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
    """Return (config without `auto`, estimated memory of a device, or None with a warning if the model needs values).

    With engine native on one device `auto` is also tested by two real updates. Raises ModelError when training needs
    more than the device has.
    """
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
    """Start XLA's virtual devices before the first backward pass, or later ones on XLA fail. Nothing for neuron, whose
    graphs another process traces."""
    if config.engine == "xla" and config.device == "cpu":
        from trnflow.tasks.training.xla.devices import start_devices

        start_devices(config)
