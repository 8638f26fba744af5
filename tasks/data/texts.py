"""The texts of an example of `format_prompts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PAIR = "text_pair"
"""The column of a second text, where examples have two."""
NEGATIVE = "negative"
"""The column of a third text."""
TYPES_FILE = "token_types.npy"
"""The file of their tokens' types, uint8 [tokens]: what belongs to which text; of texts read apart their number from 0."""


def prompt_and_answer(prompt: str, answer: str) -> list[dict[str, Any]]:
    """Return the parts of an example: a prompt, which programs send as it is, and its answer, which is trained on."""
    return [{"text": prompt, "train": False, "ends_prompt": True}, {"text": answer, "train": True}]


def text_of_example(example: Mapping[str, Any]) -> str:
    """Return what a model reads as one text: parts joined, further texts on new lines."""
    if "text" not in example:
        return "".join(part["text"] for part in example["parts"])
    return "\n".join(str(example[name]) for name in ("text", PAIR, NEGATIVE) if name in example)
