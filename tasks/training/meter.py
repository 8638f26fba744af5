"""How fast training goes: tokens, waits and memory, counted on the host. Nothing of it reaches the result."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tasks.training.batches import Batch


@dataclass
class Meter:
    """Of the steps since `start` that compiled nothing. waited: seconds for data; elsewhere: seconds that were no training:
    evaluating, saving and compiling; supervised: targets that count; real: tokens that are not padding; padded: all positions."""

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
        self.steps += 1
        self.samples += batch.samples
        self.supervised += batch.supervised
        self.real += batch.real
        self.padded += batch.input_ids.size
        self.flops += flops

    @property
    def seconds(self) -> float:
        return max(time.perf_counter() - self.start - self.elsewhere, 1e-9)

    def rates(self) -> dict[str, float]:
        """A second. tokens_per_second: supervised ones."""
        seconds = self.seconds
        return {
            "samples_per_second": self.samples / seconds,
            "tokens_per_second": self.supervised / seconds,
            "real_tokens_per_second": self.real / seconds,
            "padded_tokens_per_second": self.padded / seconds,
        }


class Meters:
    """Two of them, `whole` for all steps of this process and `lap` for those since the last log."""

    def __init__(self) -> None:
        self.whole, self.lap = Meter(), Meter()

    def count(self, batch: Batch, flops: int) -> None:
        for meter in (self.whole, self.lap):
            meter.count(batch, flops)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        for meter in (self.whole, self.lap):
            meter.waited += time.perf_counter() - begun

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Around what is no training."""
        begun = time.perf_counter()
        yield
        self.add_elsewhere(time.perf_counter() - begun)

    def add_elsewhere(self, seconds: float) -> None:
        for meter in (self.whole, self.lap):
            meter.elsewhere += seconds


def host_memory() -> int:
    """Bytes that this process had resident at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
