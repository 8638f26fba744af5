"""Say when a model's texts do not end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import Generation
    from trnflow.tasks.metadata import PackedMeta


def endings_note(lines: list[Generation], packed: PackedMeta) -> str | None:
    """Return a sentence if most of the greedy texts did not end, else None. packed: of the rows that were trained on."""
    endless = [line["tokens"] for line in lines if not line["ended"]]
    if 2 * len(endless) <= len(lines):
        return None
    note = (
        f"{len(endless)} of {len(lines)} generated texts did not end within {max(endless)} tokens: the model has not learnt to "
        "stop, or evaluate.generation.max_new_tokens is too small"
    )
    cut = packed.get("cut_answers", {}).get("train", 0)
    whole = sum(end["answers"] for end in packed.get("ends", ()))
    return f"{note}; tokenize.max_length cut the end of {cut} of {cut + whole} answers of train" if cut else note
