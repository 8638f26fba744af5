"""Whether the tokenizer knows the script of the texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.evaluation.verdicts.facts import Facts, percent

if TYPE_CHECKING:
    from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer

UNKNOWN = 0.2
"""The share of tokens from which a script is called unknown."""


def unknown_script(facts: Facts) -> str | None:
    if facts.unknown <= UNKNOWN:
        return None
    return (
        f"{percent(facts.unknown)} of the tokens of {facts.split} are unknown ones or parts of a letter: the model does not know "
        "the script of these texts; take a model of their language, or a multilingual one (model.source)"
    )


def unknown_share(packed: Input, split: str, tokenizer: FastTokenizer) -> float:
    """Return the share of a split's tokens, special ones apart, that are the unknown token or spell no whole letter."""
    import numpy as np

    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for length in (int(length) for length, chunks in packed.meta["rows"][split].items() if chunks):
        columns = open_chunks(packed, split, length)
        counts += np.bincount(columns["input_ids"][columns["segment_ids"] != 0], minlength=len(counts))[: len(counts)]
    unknown = tokenizer.id_of("unk_token")
    special = {number for role in tokenizer.special if (number := tokenizer.id_of(role)) is not None}
    ends = special - {unknown} | {packed.meta.get(role) for role in ("pad_id", "bos_id", "eos_id")}
    there = [int(number) for number in counts.nonzero()[0] if number not in ends]
    alone = tokenizer.tokenizer.decode_batch([[number] for number in there], skip_special_tokens=False)
    strange = [number for number, text in zip(there, alone, strict=True) if number == unknown or "\ufffd" in text]
    total = int(counts[there].sum())
    return int(counts[strange].sum()) / total if total else 0.0
