"""Measure training's speed on the host. These figures never affect the weights."""

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
    """Counts of the steps since `start`, without those that compiled.

    Attributes:
        start: Seconds of `time.perf_counter`.
        supervised: Targets.
        real: Tokens without padding.
        padded: All positions.
        flops: Of forward and backward passes.
        waited: Seconds for data.
        elsewhere: Seconds of evaluating, saving and compiling.
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
        """Add a step. flops: of its forward and backward pass."""
        self.steps += 1
        self.samples += batch.samples
        self.supervised += batch.supervised
        self.real += batch.real
        self.padded += batch.input_ids.size
        self.flops += flops

    @property
    def seconds(self) -> float:
        """Seconds since `start` without `elsewhere`."""
        return max(time.perf_counter() - self.start - self.elsewhere, 1e-9)

    def rates(self) -> dict[str, float]:
        """Return a second's samples, tokens (targets), real_tokens and padded_tokens."""
        seconds = self.seconds
        return {
            "samples_per_second": self.samples / seconds,
            "tokens_per_second": self.supervised / seconds,
            "real_tokens_per_second": self.real / seconds,
            "padded_tokens_per_second": self.padded / seconds,
        }


class Meters:
    """Two meters: `whole` of all steps, `lap` since the last log."""

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
        """Leave the time within the context out of the training time."""
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
