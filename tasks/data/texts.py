"""The texts of an example of `format_prompts`, and the order of splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

PAIR = "text_pair"
"""The column of a second text, where examples have two."""
HELD_OUT = "held_out"
"""The field of a part that is not trained on, within an answer that is: no token with one of its characters is learnt."""
NEGATIVE = "negative"
"""The column of a third text."""
TOKEN = "token"
"""The field of a part that is no text, but the tokenizer's special token of this role."""
TYPES_FILE = "token_types.npy"
"""The file of their tokens' types, uint8 [tokens]: what belongs to which text; of texts read apart their number from 0."""


def in_order(splits: Iterable[str]) -> list[str]:
    """Return splits as stages make and name them: train, validation, test. Metadata has them sorted by name."""
    return sorted(splits, key=lambda split: (split != "train", split == "test"))


def prompt_and_answer(prompt: str, answer: str) -> list[dict[str, Any]]:
    """Return the parts of an example: a prompt, which programs send as it is, and its answer, which is trained on."""
    return [{"text": prompt, "train": False, "ends_prompt": True}, {"text": answer, "train": True}]


def text_of_example(example: Mapping[str, Any]) -> str:
    """Return what a model reads as one text: parts joined, further texts on new lines."""
    if "text" not in example:
        return "".join(part["text"] for part in example["parts"])
    return "\n".join(str(example[name]) for name in ("text", PAIR, NEGATIVE) if name in example)


def text_of(value: Any) -> str:
    """Return a cell as text, "" for null and NaN: `true` as in JSON and as a label, decimals without exponent."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
