"""Token rows as a person reads them: decoded from the very tokens that are trained on, so that a lost mask or a special
token too many is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.artifact import Input
from tasks.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


class Span(NamedTuple):
    """A part of a row. train: its tokens are supervised."""

    text: str
    train: bool


class Row(NamedTuple):
    """number: from 1; tokens, supervised: counts; label: of a classified row."""

    number: int
    tokens: int
    supervised: int
    spans: tuple[Span, ...]
    label: str | None


def preview(tokens: Input, split: str, count: int) -> list[Row]:
    """The first `count` rows of a split of `tokenize_text`'s artifact. ConfigError for a split it lacks."""
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
    """ids: int32 [tokens], mask: uint8 [tokens] -> the row's text, cut where the mask changes. Each part is what it adds
    to the text before it: decoders treat the first token of a text in their own way."""
    import numpy as np

    ends = [*(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
    spans, before, start = [], "", 0
    for end in ends:
        text = tokenizer.decode(ids[:end].tolist(), skip_special_tokens=False)
        spans.append(Span(text[len(before) :], bool(mask[start])))
        before, start = text, end
    return spans
