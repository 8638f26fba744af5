"""Count the rows that the model saw only in part or not at all: metrics are computed without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trnflow.tasks.artifact import Input, Meta

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import LostRows

COLUMNS: dict[Literal["truncated", "too_long", "unsupervised"], str] = {
    "truncated": "truncated",
    "too_long": "left out for their length",
    "unsupervised": "without a token to train on",
}
"""{kind of lost rows: head of its column on the page}"""


def lost_rows(texts: Input, packed: Input) -> dict[str, LostRows]:
    return {split: _lost(packed.meta, split, rows) for split, rows in texts.meta.get("splits", {}).items()}


def _lost(packed: Meta, split: str, rows: int) -> LostRows:
    def count(name: str) -> int:
        return int(packed.get(name, {}).get(split, 0))

    dropped = count("overlong") if packed.get("dropped", {}).get("overlong") else 0  # else they were cut or split
    return {
        "rows": rows,
        "truncated": count("truncated"),
        "too_long": dropped + count("too_long_to_pack"),
        "unsupervised": count("unsupervised"),
    }
