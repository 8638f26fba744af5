"""The interface between the training loop and the engines. Only `fetch` and `slices` wait for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.optim.optimizer import Scalars
from trnflow.tasks.training.shared_types import TensorSlice

Handle = Any
"""Numbers on the device, perhaps not computed yet."""


class Engine(Protocol):
    """Holds model and optimizer state on the devices, and runs steps. Every rank makes the same calls."""

    def train(self, batch: Batch, at: Scalars, seed: int) -> Handle:
        """Enqueue one update; return [mean loss, gradient norm, 1 if both are finite else 0], else nothing changes. Of
        pairs `METRICS` follow, of fp16 the loss scale; 1 also where the norm is not finite and the scale can fall.

        batch: Rows of all replicas. seed: Of the dropout.
        """

    def evaluate(self, batch: Batch) -> Handle:
        """Enqueue a forward pass without dropout; return [summed loss, correct targets], with `reads_rows` also
        the logits of all replicas' rows; of pairs the sums of [loss, *METRICS]."""

    def fetch(self, handles: Sequence[Handle]) -> list[list[float]]:
        """Wait for the device and return each handle's numbers."""

    def slices(self, *, state: bool) -> Iterator[TensorSlice]:
        """Copy trained parameters, with `state` the optimizer's too, and yield this process's slices, in fp32."""

    def peak_memory(self) -> int | None:
        """Return the most bytes allocated so far; None off CUDA."""
