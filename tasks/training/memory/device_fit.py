"""Fit training to the device's memory: resolve `micro_batch: auto`, refuse what needs more."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.devices import device_memory
from trnflow.tasks.training.memory.estimate import Memory, check_memory
from trnflow.tasks.training.memory.micro_batch import largest_fitting
from trnflow.tasks.training.memory.probe import can_probe, fits
from trnflow.tasks.training.memory.traced_memory import Untraceable, trace_memory

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta


def fit_to_device(
    config: TrainConfig, model: Source, packed: Input[PackedMeta], out: Workdir
) -> tuple[TrainConfig, Memory | None]:
    """Return (config without `auto`, a device's estimated memory, or None with a warning).

    Raises ModelError when training needs more than the device has.
    """
    limit = device_memory(config)
    # before the first backward pass, or later ones on XLA fail; another process traces neuron's graphs
    if config.engine == "xla" and config.device == "cpu":
        from trnflow.tasks.training.xla.devices import start_devices

        start_devices(config)

    def runs(candidate: TrainConfig) -> bool:
        # an estimate of engine native on one device is also tested by two real updates
        return not can_probe(candidate) or fits(candidate, model, packed, limit, out)

    @cache
    def memory_of(micro_batch: int) -> Memory | None:
        try:
            return trace_memory(config.with_micro_batch(micro_batch), model, packed.meta)
        except Untraceable as error:
            out.warn(error.message)
            return None

    fitting = largest_fitting(config, lambda candidate: memory_of(candidate.replica_batch), limit, runs)
    if config.micro_batch == "auto":
        out.info(f"micro_batch auto is {fitting.replica_batch}, accumulated {fitting.accumulation} times")
    memory: Memory | None = memory_of(fitting.replica_batch)
    if memory is not None:
        check_memory(fitting, memory, limit)
    return fitting, memory
