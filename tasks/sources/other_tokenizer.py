"""Find out that `model.tokenizer` is of another model: its ids then mean other words than the model's embeddings learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.sources.weight_files import parse_small

FILE = "tokenizer.json"
SHARE = 0.1
"""Of ids that are other tokens, from which they are remarked: a few unused ones are often given own words."""


def remark_of_tokenizer(model: Meta, tokenizer: Meta) -> str:
    """Return a remark if a tokenizer's ids are other tokens in the model's own folder; "" where both are not at hand.

    model, tokenizer: as `model_source` resolves them.
    """
    folders = [(each.get("location") or {}).get("folder") for each in (model, tokenizer)]
    if model.get("weights") is None or None in folders:
        return ""
    own, other = (_tokens(Path(str(folder), FILE)) for folder in folders)
    shared = own.keys() & other.keys()
    changed = sorted(number for number in shared if own[number] != other[number])
    if len(changed) <= SHARE * len(shared):
        return ""
    first = changed[0]
    return (
        f"model.tokenizer: {len(changed):,} of {len(shared):,} ids are other tokens than in the model's own tokenizer, such as "
        f"{first}, {own[first]!r} there and {other[first]!r} here: the model reads other words than it learnt"
    )


def _tokens(file: Path) -> dict[int, str]:
    """Return {id: token} of a tokenizer.json; {} of one that can't be read, which the stage says that loads it."""
    try:
        document = parse_small(file.read_bytes())
        vocab: Any = document["model"]["vocab"]
        pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], at) for at, entry in enumerate(vocab))
        tokens = {int(number): str(token) for token, number in pairs}
        return tokens | {int(added["id"]): str(added["content"]) for added in document.get("added_tokens") or ()}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {}
