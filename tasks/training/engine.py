"""The interface between the training loop and the engines.

Engine native runs eagerly, one device a process; engine xla runs compiled graphs, over all devices from one process or
one a process. Both take the same batches and scalars, name parameters and state alike, and register each graph. Only
`fetch` and `slices` wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.optim.optimizer import Scalars
from trnflow.tasks.training.shared_types import TensorSlice

Handle = Any
"""Numbers on the device, perhaps not computed yet; `Engine.fetch` waits for them."""


class Engine(Protocol):
    """Holds model and optimizer state on the devices, and runs the training steps. Every rank makes the same calls in
    the same order."""

    def train(self, batch: Batch, at: Scalars, seed: int) -> Handle:
        """Enqueue one update; return a handle of [mean loss, gradient norm, 1 if both are finite else 0]. A non-finite
        update changes nothing.

        Args:
            batch: The rows of all replicas; each process computes its share.
            at: The learning rate and the update's other numbers.
            seed: Of the update's dropout.
        """

    def evaluate(self, batch: Batch) -> Handle:
        """Enqueue a forward pass without dropout; return a handle of [summed loss, correctly predicted targets]."""

    def fetch(self, handles: Sequence[Handle]) -> list[list[float]]:
        """Wait for the device and return each handle's numbers."""

    def slices(self, *, state: bool) -> Iterator[TensorSlice]:
        """Copy trained parameters in fp32, with `state` also the optimizer's, to the CPU and yield the slices of a
        checkpoint that this process writes. Later steps do not change them."""

    def peak_memory(self) -> int | None:
        """Return the most bytes allocated on the device, or None."""
