"""Decode tokenised rows for people to check, from token ids, so that a wrong mask is visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.kinds.kind import IGNORED
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import numpy as np

    from trnflow.tasks.metadata import TokensMeta

    Array = np.ndarray[Any, np.dtype[Any]]


class Span(NamedTuple):
    """A piece of a decoded row that is trained on as a whole or not at all."""

    text: str
    train: bool


class Row(NamedTuple):
    """A decoded row. number: in the split, from 1; supervised: number of tokens; label: None of a language model."""

    number: int
    tokens: int
    supervised: int
    spans: tuple[Span, ...]
    label: str | None


def preview(tokens: Input[TokensMeta], split: str, count: int) -> list[Row]:
    """Decode the first `count` rows of a split. Raises ConfigError for a split that the artifact does not have."""
    import numpy as np
    from tokenizers import Tokenizer

    if split not in tokens.meta["splits"]:
        raise ConfigError(f"there is no split {split}", f"splits: {', '.join(tokens.meta['splits'])}")
    tokenizer = Tokenizer.from_file(str(tokens.path / "tokenizer" / "tokenizer.json"))
    folder = tokens.path / split
    offsets = load_array(folder / "offsets.npy", mapped=True)
    ids = load_array(folder / "input_ids.npy", mapped=True)
    names, rows = tokens.meta["labels"], range(min(count, tokens.meta["splits"][split]))
    labels = load_array(folder / "labels.npy", mapped=True) if names else None
    kind = kind_of(tokens.meta["task"])
    mask = None if names else load_array(folder / "loss_mask.npy", mapped=True)
    if labels is not None and kind.per_position:
        mask = labels != IGNORED
    decoded = []
    for row in rows:
        here = slice(int(offsets[row]), int(offsets[row + 1]))
        trained = np.zeros(here.stop - here.start, np.uint8) if mask is None else np.array(mask[here], np.uint8)
        target = None if labels is None else labels[here] if kind.per_position else labels[row]
        label = None if target is None or names is None else kind.shown(target, names)
        spans = tuple(spans_of(tokenizer, np.array(ids[here]), trained))
        decoded.append(Row(row + 1, len(trained), int(trained.sum()), spans, label))
    return decoded


def spans_of(tokenizer: Any, ids: Array, mask: Array) -> list[Span]:
    """Decode a row and cut the text where the loss mask changes. ids: int32 [tokens]; mask: uint8 [tokens]."""
    import numpy as np

    ends = [*(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
    spans, before, start = [], "", 0
    for end in ends:
        # decoders may drop a first token's leading space, so a span is what its tokens add to all before
        text = tokenizer.decode(ids[:end].tolist(), skip_special_tokens=False)
        spans.append(Span(text[len(before) :], bool(mask[start])))
        before, start = text, end
    return spans
