"""Settings: which rows make up a batch."""

from __future__ import annotations

from typing import Annotated, Literal

from trnflow.tasks.config import GRAPH, BatchRows, Seed
from trnflow.tasks.training.settings.group import Group


class BatchSettings(Group):
    """Which rows make up a batch. One of the groups of settings below `train:`."""

    global_batch: Annotated[BatchRows, GRAPH] = 32
    """Rows (sequences) per update, over all replicas."""

    micro_batch: Annotated[BatchRows | Literal["auto"] | None, GRAPH] = None
    """Rows per replica and forward pass; the gradients of a global batch's passes are accumulated. auto: as many as fit the
    device's memory, which precompile finds. Default: a replica's whole share of the global batch."""

    last_batch: Literal["drop", "pad"] = "pad"
    """What happens to the last rows of an epoch if they do not fill a batch: pad: train on them in a smaller batch.
    drop: leave them out of that epoch."""

    group_by_length: bool = False
    """Put rows with about as many tokens into one batch, so that engine native pads less. Batches are less random: the demo, a
    short training, reached F1 0.50 instead of 0.58. Packed rows all have one length."""

    seed: Seed = 0
    """Seed of the order of rows, dropout, and weights that are initialised at random."""
