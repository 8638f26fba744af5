"""The texts of an example of `format_prompts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PAIR = "text_pair"
"""The column of a second text, where examples have two."""
HELD_OUT = "held_out"
"""The field of a part that is not trained on, within an answer that is: no token with one of its characters is learnt."""
NEGATIVE = "negative"
"""The column of a third text."""
TYPES_FILE = "token_types.npy"
"""The file of their tokens' types, uint8 [tokens]: what belongs to which text; of texts read apart their number from 0."""


def text_of_example(example: Mapping[str, Any]) -> str:
    """Return what a model reads as one text: parts joined, further texts on new lines."""
    if "text" not in example:
        return "".join(part["text"] for part in example["parts"])
    return "\n".join(str(example[name]) for name in ("text", PAIR, NEGATIVE) if name in example)
