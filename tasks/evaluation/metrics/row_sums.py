"""What metrics of language models read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class RowSums(NamedTuple):
    """The losses of a language model for rows. nll: float64 [rows], in nats; tokens, bytes: int64 [rows], supervised
    ones; total: the sum of nll."""

    nll: Floats
    tokens: Ints
    bytes: Ints
    total: float
