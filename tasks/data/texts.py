"""The texts of an example of `format_prompts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PAIR = "text_pair"
"""The column of a second text, where examples have two."""
TYPES_FILE = "token_types.npy"
"""The file of their tokens' types, uint8 [tokens]: what belongs to which text."""


def text_of_example(example: Mapping[str, Any]) -> str:
    """Return what a model reads as one text: parts joined, a second text on a new line."""
    if "text" not in example:
        return "".join(part["text"] for part in example["parts"])
    return f"{example['text']}\n{example[PAIR]}" if PAIR in example else str(example["text"])
