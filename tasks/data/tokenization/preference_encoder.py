"""Encode two answers to a prompt as one row of token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.tokenization.answer_ends import joined
from trnflow.tasks.data.tokenization.encoders import CausalEncoder, Encoded, teaches
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
from trnflow.tasks.data.tokenization.word_encoder import gather
from trnflow.tasks.kinds.preference import REJECTED

if TYPE_CHECKING:
    import pyarrow as pa


class PreferenceEncoder(CausalEncoder):
    """Encodes the columns `parts` and `rejected`, of the same type, as one row with types 0 and 1. Truncates each text;
    drops pairs of which a text is too long, or has nothing to train on."""

    def __init__(self, loaded: FastTokenizer, max_length: int, overlong: str, **shape: Any) -> None:
        super().__init__(loaded, max_length, "truncate" if overlong == "truncate" else "error", **shape)
        self._drops = overlong == "drop"

    def encode(self, rows: pa.Table) -> Encoded:
        import numpy as np

        both = [super(PreferenceEncoder, self).encode(_only(rows, name)) for name in ("parts", REJECTED)]
        lengths = np.maximum(*(each.lengths for each in both))
        fits = lengths <= self._max_length if self._drops else np.ones(len(lengths), dtype=bool)
        taught = np.logical_and(*(teaches(each) for each in both))
        kept = np.flatnonzero(fits & taught)
        sizes = np.stack([each.sizes[kept] for each in both], axis=1)
        is_second = np.repeat(np.tile([False, True], len(kept)), sizes.ravel())
        starts = [(np.cumsum(each.sizes) - each.sizes)[kept] for each in both]

        def in_one(name: str) -> Any:
            parts = [gather(getattr(both[n], name), starts[n], sizes[:, n]) for n in range(2)]
            whole = np.empty(len(is_second), parts[0].dtype)
            whole[~is_second], whole[is_second] = parts
            return whole

        forged = [*{row: text for each in reversed(both) for row, text in each.forged}.items()]
        return Encoded(
            in_one("ids"), sizes.sum(1), in_one("extra"), kept, lengths, forged, int((fits & ~taught).sum()),
            is_second.astype(np.uint8), joined([each.ends for each in both if each.ends]).of(kept),
            sorted({*both[0].apart, *both[1].apart}),
        )  # fmt: skip


def _only(rows: pa.Table, name: str) -> pa.Table:
    return rows.select([name]).rename_columns(["parts"])
