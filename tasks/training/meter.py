"""Measure the speed of training on the host: tokens, waits and memory. These figures never affect the trained weights."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trnflow.tasks.training.batches.sampler import Batch


@dataclass
class Meter:
    """Counts of the training steps since `start`. Steps that compiled a graph are not counted.

    Attributes:
        start: the time when counting began, in seconds of `time.perf_counter`.
        steps: number of steps.
        samples: number of rows.
        supervised: number of targets (tokens or labels with a loss).
        real: number of tokens without padding.
        padded: number of positions, padding included.
        flops: floating-point operations of forward and backward passes.
        waited: seconds spent waiting for data.
        elsewhere: seconds spent evaluating, saving and compiling.
    """

    start: float = field(default_factory=time.perf_counter)
    steps: int = 0
    samples: int = 0
    supervised: int = 0
    real: int = 0
    padded: int = 0
    flops: int = 0
    waited: float = 0.0
    elsewhere: float = 0.0

    def count(self, batch: Batch, flops: int) -> None:
        """Add a step that trained on `batch` to the counts of steps, rows, targets, tokens and operations. flops: the
        floating-point operations of the step's forward and backward pass."""
        self.steps += 1
        self.samples += batch.samples
        self.supervised += batch.supervised
        self.real += batch.real
        self.padded += batch.input_ids.size
        self.flops += flops

    @property
    def seconds(self) -> float:
        """The seconds of training since `start`, without the time spent evaluating, saving and compiling."""
        return max(time.perf_counter() - self.start - self.elsewhere, 1e-9)

    def rates(self) -> dict[str, float]:
        """Return the speed since `start`: "samples_per_second" (rows), "tokens_per_second" (targets),
        "real_tokens_per_second" (tokens without padding) and "padded_tokens_per_second" (all positions)."""
        seconds = self.seconds
        return {
            "samples_per_second": self.samples / seconds,
            "tokens_per_second": self.supervised / seconds,
            "real_tokens_per_second": self.real / seconds,
            "padded_tokens_per_second": self.padded / seconds,
        }


class Meters:
    """Two meters of training speed: `whole` counts all steps of this process, `lap` the steps since the last log."""

    def __init__(self) -> None:
        self.whole, self.lap = Meter(), Meter()

    def count(self, batch: Batch, flops: int) -> None:
        for meter in (self.whole, self.lap):
            meter.count(batch, flops)

    @contextmanager
    def wait_for_data(self) -> Iterator[None]:
        """Count the time within the context as waiting for data, in both meters."""
        begun = time.perf_counter()
        yield
        for meter in (self.whole, self.lap):
            meter.waited += time.perf_counter() - begun

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time within the context, such as an evaluation, out of the training time of both meters."""
        begun = time.perf_counter()
        yield
        self.add_elsewhere(time.perf_counter() - begun)

    def add_elsewhere(self, seconds: float) -> None:
        for meter in (self.whole, self.lap):
            meter.elsewhere += seconds


def host_memory() -> int:
    """Return the peak memory (resident size) of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
