"""The interface between the training loop and the engines that compute: native and xla.

Engine native drives one device a process and runs eagerly. Engine xla runs compiled graphs, over all devices from
one process or over one device a process. Both engines take the same batches and scalars, and give parameters and
optimizer state the same names. Both register each graph (a computation for one shape of rows) in a `GraphRegistry`,
which checks that the stage precompile has listed the graph. Only `fetch` and `slices` wait for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.optim.optimizer import Scalars
from trnflow.tasks.training.shared_types import TensorSlice

Handle = Any
"""Numbers on the device that may not be computed yet. `Engine.fetch` waits for the device and returns them."""


class Engine(Protocol):
    """Interface of the engines: an engine holds the model and the optimizer's state on the devices, and runs the
    training steps.

    Every rank (one of the processes that train together) must make the same calls in the same order."""

    def train(self, batch: Batch, at: Scalars, seed: int) -> Handle:
        """Enqueue one update of the weights, without waiting for the device. Return a handle (a tensor on the device,
        which `fetch` reads) of [mean loss, gradient norm, 1 if both are finite else 0].

        Args:
            batch: the rows of all replicas (data parallel copies of the model); each process computes its share.
            at: the learning rate and the other numbers of the update.
            seed: the seed of the update's dropout.

        An update whose loss or gradient norm is not finite changes nothing."""

    def evaluate(self, batch: Batch) -> Handle:
        """Enqueue a forward pass without dropout over `batch`, the rows of all replicas (data parallel copies of the
        model). The weights do not change. Return a handle (a tensor on the device, which `fetch` reads) of [summed
        loss, number of correctly predicted targets]."""

    def fetch(self, handles: Sequence[Handle]) -> list[list[float]]:
        """Wait for the device and return the numbers of each handle that `train` or `evaluate` returned."""

    def slices(self, *, state: bool) -> Iterator[TensorSlice]:
        """Copy the trained parameters to the CPU in fp32, and yield the copies as slices (parts of tensors) of a
        checkpoint. With `state` do the same for the optimizer's state.

        Each process yields the slices that it has to write; over all processes every slice occurs once. Later steps do
        not change the copies."""

    def peak_memory(self) -> int | None:
        """Return the largest number of bytes that was allocated on the device, or None where it is not known."""
