"""Whether the tokenizer knows the script of the texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.evaluation.verdicts.facts import Facts, percent

if TYPE_CHECKING:
    from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
    from trnflow.tasks.system.arrays import Ints

UNKNOWN = 0.2
"""The share of tokens from which a script is called unknown."""


def unknown_script(facts: Facts) -> str | None:
    return strange_script(facts.unknown, facts.split)


def strange_script(share: float, where: str) -> str | None:
    """Say that a model does not know the script of texts. share: of their unknown tokens; where: what holds them."""
    if share <= UNKNOWN:
        return None
    return (
        f"{percent(share)} of the tokens of {where} are unknown ones or parts of a letter: the model does not know the script of "
        "these texts; take a model of their language, or a multilingual one (model.source)"
    )


def unknown_share(tokenizer: FastTokenizer, counts: Ints) -> float:
    """Return the share of tokens, special ones apart, that are the unknown token or spell no whole letter.

    counts: how often each id occurs, int64 [vocabulary].
    """
    unknown, ids = tokenizer.id_of("unk_token"), tokenizer.meta()
    special = {number for role in tokenizer.special if (number := tokenizer.id_of(role)) is not None} - {unknown}
    special |= {number for number in (ids["pad_id"], ids["bos_id"], ids["eos_id"]) if number is not None}
    there = [int(number) for number in counts.nonzero()[0] if number not in special]
    alone = tokenizer.tokenizer.decode_batch([[number] for number in there], skip_special_tokens=False)
    strange = [number for number, text in zip(there, alone, strict=True) if number == unknown or "\ufffd" in text]
    return int(counts[strange].sum()) / max(int(counts[there].sum()), 1)


def token_counts(packed: Input, split: str, vocabulary: int) -> Ints:
    """Return how often each id below `vocabulary` occurs in a split."""
    import numpy as np

    counts = np.zeros(vocabulary, np.int64)
    for length in (int(length) for length, chunks in packed.meta["rows"][split].items() if chunks):
        columns = open_chunks(packed, split, length)
        counts += np.bincount(columns["input_ids"][columns["segment_ids"] != 0], minlength=vocabulary)[:vocabulary]
    return counts
