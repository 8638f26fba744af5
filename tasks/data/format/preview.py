"""Decode tokenised rows into text that people can check. Texts are decoded from the token ids, not taken from the source
rows, so that a wrong loss mask or an extra special token is visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


class Span(NamedTuple):
    """A piece of a decoded row (a tokenised text turned back into text) in which all tokens are trained on (`train` is
    True) or none is (`train` is False)."""

    text: str
    train: bool


class Row(NamedTuple):
    """A tokenised row of the data, decoded into text for people to check.

    Attributes:
        number: the row's number in the split, from 1.
        tokens: the number of the row's tokens.
        supervised: the number of the row's tokens that are trained on; 0 in a row for classification.
        spans: the row's text, in order, as pieces that are trained on as a whole or not at all.
        label: the label's name, or None for a language model's row.
    """

    number: int
    tokens: int
    supervised: int
    spans: tuple[Span, ...]
    label: str | None


def preview(tokens: Input, split: str, count: int) -> list[Row]:
    """Decode the first `count` tokenised rows of a split (all rows if it has fewer) and return them for printing.
    tokens: the artifact (output folder and metadata) of the stage `tokenize_text`.

    Raises ConfigError for a split that the artifact does not have."""
    import numpy as np
    from tokenizers import Tokenizer

    if split not in tokens.meta["splits"]:
        raise ConfigError(f"there is no split {split}", f"splits: {', '.join(tokens.meta['splits'])}")
    tokenizer = Tokenizer.from_file(str(tokens.path / "tokenizer" / "tokenizer.json"))
    folder = tokens.path / split
    offsets = np.load(folder / "offsets.npy", mmap_mode="r")
    ids = np.load(folder / "input_ids.npy", mmap_mode="r")
    names, rows = tokens.meta["labels"], range(min(count, tokens.meta["splits"][split]))
    labels = np.load(folder / "labels.npy", mmap_mode="r") if names else None
    mask = None if names else np.load(folder / "loss_mask.npy", mmap_mode="r")
    found = []
    for row in rows:
        here = slice(int(offsets[row]), int(offsets[row + 1]))
        trained = np.zeros(here.stop - here.start, np.uint8) if mask is None else np.array(mask[here])
        label = None if labels is None else str(names[int(labels[row])])
        spans = tuple(spans_of(tokenizer, np.array(ids[here]), trained))
        found.append(Row(row + 1, len(trained), int(trained.sum()), spans, label))
    return found


def spans_of(tokenizer: Any, ids: Array, mask: Array) -> list[Span]:
    """Decode one row of token ids and cut the text where the loss mask changes. Returns the pieces of text, in order,
    each with the flag whether it is trained on. ids: int32 [tokens]; mask: uint8 [tokens], 1 where trained on.

    The text of each span is what its tokens add to the text of all tokens before it, because decoders treat the first
    token of a text in a special way (they may drop its leading space)."""
    import numpy as np

    ends = [*(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
    spans, before, start = [], "", 0
    for end in ends:
        text = tokenizer.decode(ids[:end].tolist(), skip_special_tokens=False)
        spans.append(Span(text[len(before) :], bool(mask[start])))
        before, start = text, end
    return spans
