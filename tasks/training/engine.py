"""The seam between the loop and what computes: a few calls, none of which waits for the device but `fetch` and `boxes`.

`native` drives one device a process, eagerly; `xla` a mesh from one process, or one device a process, by compiled graphs.
Both take the same batches and scalars, hold parameters and optimizer state by the same names, and meet each graph through
the same `Ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tasks.training.batches import Batch
from tasks.training.config import TrainConfig
from tasks.training.inventory import Ledger
from tasks.training.model import Built
from tasks.training.optim import Scalars
from tasks.training.plan import check_heads
from tasks.training.ranks import ALONE, World

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.checkpoint import Reader

Handle = Any  # numbers on the device, not waited for


class Box(NamedTuple):
    """A part of a stored tensor. device: who writes it, from 0; start: its place in each dimension; whole: the shape of all."""

    name: str
    device: int
    start: tuple[int, ...]
    whole: tuple[int, ...]
    value: Tensor


class Engine(Protocol):
    def train(self, batch: Batch, at: Scalars, seed: int) -> Handle:
        """Enqueue one update on a global batch -> [mean loss, gradient norm, 1 if finite]. An update that is not finite
        changes nothing. seed: of this step's dropout."""

    def evaluate(self, batch: Batch) -> Handle:
        """Enqueue a forward pass -> [summed loss, correct targets]."""

    def fetch(self, handles: Sequence[Handle]) -> list[list[float]]:
        """Wait for the numbers."""

    def boxes(self, *, state: bool) -> Iterator[Box]:
        """The parameters in fp32 and, with `state`, both moments, on the CPU, in memory that no later step changes: those that
        this process writes, so that among all processes each box is there once."""

    def peak_memory(self) -> int | None:
        """Bytes on the device at most, where it tells."""


def make_engine(
    config: TrainConfig, built: Built, ledger: Ledger, stored: Reader | None = None, world: World = ALONE
) -> Engine:
    """stored: a checkpoint to start from, of any layout; world: the processes that train together, each making the same calls.
    On a `built` that is only traced, every call meets its graphs in the ledger and runs nothing."""
    check_heads(built.model.config.get_text_config().to_dict(), config.tensor_parallel_size)
    if config.engine == "native":
        from tasks.training.native import NativeEngine

        return NativeEngine(config, built, ledger, stored, world)
    from tasks.training.xla import XlaEngine

    return XlaEngine(config, built, ledger, stored, world)
