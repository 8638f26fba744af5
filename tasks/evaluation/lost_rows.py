"""Count, for each split, the rows that the model saw only in part or not at all. Metrics on a split are computed
without the rows that were left out, so the report shows these counts beside them."""

from __future__ import annotations

from trnflow.tasks.artifact import Input, Meta

COLUMNS = {
    "truncated": "truncated",
    "too_long": "left out for their length",
    "unsupervised": "without a token to train on",
}
"""{kind of lost rows: the head of its column on the page}"""


def lost_rows(texts: Input, packed: Input) -> Meta:
    """Count the rows of each split of which tokenizing or packing left out tokens, or the whole row. Return {split:
    {rows, truncated, too_long, unsupervised}}, each a number of rows of that split.

    Keys:
        rows: all rows of the split after format_prompts.
        truncated: rows cut to `tokenize.max_length` tokens; the rest of their tokens is used.
        too_long: rows left out because they are longer than `tokenize.max_length`, or than the longest chunk.
        unsupervised: rows of a language model left out because the model would be trained on none of their tokens.

    texts: the artifact of format_prompts (rows as text); packed: the artifact of pack_chunks (rows packed into chunks
    of tokens).
    """
    return {split: {"rows": rows, **_lost(packed.meta, split)} for split, rows in texts.meta.get("splits", {}).items()}


def _lost(packed: Meta, split: str) -> Meta:
    def count(name: str) -> int:
        return int(packed.get(name, {}).get(split, 0))

    dropped = count("overlong") if packed.get("dropped", {}).get("overlong") else 0  # else they were cut or split
    return {
        "truncated": count("truncated"),
        "too_long": dropped + count("too_long_to_pack"),
        "unsupervised": count("unsupervised"),
    }


def lost_rows_notes(split: str, counts: Meta, max_length: int | None) -> list[str]:
    """Return sentences for the evaluation's report about the rows of one split that lost tokens or were left out: one
    sentence for each count above 0 of truncated, too_long and unsupervised.

    split: the split's name; counts: the value of `lost_rows` for this split, {rows, truncated, too_long,
    unsupervised}; max_length: the number of tokens to which rows were cut."""
    rows = counts["rows"]
    sentences = {
        "truncated": f"were truncated to {max_length} tokens",
        "too_long": "were left out for their length: they are not evaluated",
        "unsupervised": "have no token to train on: they are not evaluated",
    }
    return [f"{_of(counts[kind], rows)} rows of {split} {what}" for kind, what in sentences.items() if counts[kind]]


def _of(count: int, rows: int) -> str:
    return f"{count:,} of {rows:,} ({100 * count / rows:.3g} %)"
