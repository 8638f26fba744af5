"""What encoders return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.data.tokenization.answer_ends import AnswerEnds

if TYPE_CHECKING:
    import numpy as np

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Extra = np.ndarray[Any, np.dtype[Any]]
    from trnflow.tasks.system.arrays import Int32s


class Encoded(NamedTuple):
    """Token rows, one after another.

    Attributes:
        ids: int32 [tokens].
        sizes: int64 [rows].
        extra: Loss mask uint8 [tokens], or labels int32 [rows or tokens] or float32 [rows, outputs].
        row: int64 [rows], source row from 0.
        lengths: int64 [source rows], tokens before any cut.
        forged: (source row, token) of each that spells a special token.
        unsupervised: Rows that `without_unsupervised` removed.
        types: Of rows with two texts uint8 [tokens], the token types of the tokenizer's template, of pairs which text; else
            None.
        ends: Of a language model how the answers of the source rows end.
        apart: Source rows of which a prompt and its answer are encoded apart, ascending.
    """

    ids: Int32s
    sizes: Longs
    extra: Extra
    row: Longs
    lengths: Longs
    forged: list[tuple[int, str]]
    unsupervised: int = 0
    types: Extra | None = None
    ends: AnswerEnds | None = None
    apart: Sequence[int] = ()
