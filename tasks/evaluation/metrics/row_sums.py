"""What metrics of language models read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trnflow.tasks.system.arrays import Floats, Ints


class RowSums(NamedTuple):
    """The losses of a language model for rows. nll: float64 [rows], in nats; tokens, bytes: int64 [rows], supervised
    ones; total: the sum of nll."""

    nll: Floats
    tokens: Ints
    bytes: Ints
    total: float
