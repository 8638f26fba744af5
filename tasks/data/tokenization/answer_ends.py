"""Find the token that ends each answer: the last special token of a span that is trained on, blank text after it ignored."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    from trnflow.tasks.system.arrays import Int32s

NONE = -1
"""Stands for the end of an answer that no special token ends."""


class AnswerEnds(NamedTuple):
    """How the answers of token rows end, those aside that are cut off whole.

    row: int64 [answers], source row; token: int64 [answers], id of the end token, or NONE; cut: bool [answers], whether the
    end is cut off.
    """

    row: Longs
    token: Longs
    cut: Any

    def of(self, rows: Longs) -> AnswerEnds:
        """Return the answers of some source rows."""
        import numpy as np

        kept = np.isin(self.row, rows)
        return AnswerEnds(*(values[kept] for values in self))

    def counts(self) -> dict[str, int]:
        """Return {id: answers that it ends}, of those that are not cut, as JSON."""
        import numpy as np

        ids, answers = np.unique(self.token[~self.cut & (self.token != NONE)], return_counts=True)
        return {str(number): int(count) for number, count in zip(ids, answers, strict=True)}


class EndFinder:
    """Finds how answers end. ends: the tokens that can end one; blank ones can't."""

    def __init__(self, tokenizer: Tokenizer, ends: Iterable[str]) -> None:
        named = [tokenizer.token_to_id(text) for text in ends if text.strip()]
        self._ends = [number for number in named if number is not None]
        self._is_blank = cache(lambda number: not tokenizer.decode([number], skip_special_tokens=False).strip())

    def find(self, ids: Int32s, mask: Any, sizes: Longs, kept: Any, *, from_end: bool = False) -> AnswerEnds:
        """Return how the answers of whole rows end.

        Args:
            ids: int32 [tokens].
            mask: uint8 [tokens], 1 for a token that is trained on, 2 for one that is held out of an answer.
            sizes: int64 [rows], tokens of each row.
            kept: numbers [rows], how many of them remain.
            from_end: The last ones remain, not the first.
        """
        import numpy as np

        bounds = np.concatenate([[0], np.cumsum(sizes)])
        edge = np.zeros(len(ids) + 1, dtype=bool)
        edge[bounds] = True
        inside = np.concatenate([[False], mask.astype(bool), [False]])
        first = np.flatnonzero(inside[1:-1] & (edge[:-1] | ~inside[:-2]))
        last = np.flatnonzero(inside[1:-1] & (edge[1:] | ~inside[2:]))
        visible = self._before_blanks(ids, first, last)
        token = np.where(np.isin(ids[visible], self._ends) & (mask[visible] == 1), ids[visible], NONE)
        row = np.searchsorted(bounds, first, side="right") - 1
        if from_end:
            remains = visible >= bounds[row + 1] - kept[row]
            return AnswerEnds(row[remains], token[remains], np.zeros(remains.sum(), dtype=bool))
        limit = bounds[row] + kept[row]
        cut = np.where(token == NONE, last, visible) >= limit
        return AnswerEnds(*(values[first < limit] for values in (row, token, cut)))

    def _before_blanks(self, ids: Int32s, first: Longs, last: Longs) -> Longs:
        """Return the last token of each answer that is no blank text, int64 [answers]."""
        import numpy as np

        visible, left = last.copy(), np.arange(len(last))
        while len(left):
            blank = np.array([self._is_blank(number) for number in ids[visible[left]].tolist()], dtype=bool)
            left = left[blank & (visible[left] > first[left])]
            visible[left] -= 1
        return visible


def joined(several: list[AnswerEnds]) -> AnswerEnds:
    """Return the answers of several texts of each row."""
    import numpy as np

    return AnswerEnds(*(np.concatenate(values) for values in zip(*several, strict=True)))
