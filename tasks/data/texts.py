"""The texts of an example of `format_prompts`, and the order of splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PAIR = "text_pair"
"""The column of a second text, where examples have two."""
NEGATIVE = "negative"
"""The column of a third text."""
TOKEN = "token"
"""The field of a part that is no text, but the tokenizer's special token of this role."""
TYPES_FILE = "token_types.npy"
"""The file of their tokens' types, uint8 [tokens]: what belongs to which text; of texts read apart their number from 0."""


def in_order(splits: Iterable[str]) -> list[str]:
    """Return splits as stages make and name them: train, validation, test. Metadata has them sorted by name."""
    return sorted(splits, key=lambda split: (split != "train", split == "test"))


def text_of_example(example: Mapping[str, Any]) -> str:
    """Return what a model reads as one text: parts joined, further texts on new lines."""
    if "text" not in example:
        return "".join(part["text"] for part in example["parts"])
    return "\n".join(str(example[name]) for name in ("text", PAIR, NEGATIVE) if name in example)
