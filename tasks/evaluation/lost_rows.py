"""Count the rows of each split that the model saw only in part, or not at all: a figure computed without them is about fewer
rows than the data has."""

from __future__ import annotations

from tasks.artifact import Input, Meta


def lost_rows(texts: Input, packed: Input) -> Meta:
    """Return {split: {rows, truncated, unsupervised}}: how many rows the split has as texts, how many of them were cut to
    the maximal length, and how many were left out because no token of them is trained on (language models).

    texts, packed: artifacts of format_prompts and pack_chunks."""
    return {
        split: {
            "rows": rows,
            **{what: packed.meta.get(what, {}).get(split, 0) for what in ("truncated", "unsupervised")},
        }
        for split, rows in texts.meta.get("splits", {}).items()
    }


def lost_rows_notes(split: str, counts: Meta, max_length: int | None) -> list[str]:
    """Return a sentence for each kind of lost rows that the split has. counts: its entry in `lost_rows`; max_length: in
    tokens."""
    rows, truncated, unsupervised = (counts[what] for what in ("rows", "truncated", "unsupervised"))
    notes = []
    if truncated:
        notes.append(f"{_of(truncated, rows)} rows of {split} were truncated to {max_length} tokens")
    if unsupervised:
        notes.append(f"{_of(unsupervised, rows)} rows of {split} have no token to train on: they are not evaluated")
    return notes


def _of(count: int, rows: int) -> str:
    return f"{count:,} of {rows:,} ({100 * count / rows:.3g} %)"
