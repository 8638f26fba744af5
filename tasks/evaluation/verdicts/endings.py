"""Say when a model's texts do not end."""

from __future__ import annotations

from trnflow.tasks.evaluation.verdicts.facts import Facts


def endless_texts(facts: Facts) -> str | None:
    """Say that most of the greedy texts did not end."""
    lines = facts.generations
    endless = [line["tokens"] for line in lines if not line["ended"]]
    if 2 * len(endless) <= len(lines):
        return None
    note = (
        f"{len(endless)} of {len(lines)} generated texts did not end within {max(endless)} tokens: the model has not learnt to "
        "stop, or evaluate.generation.max_new_tokens is too small"
    )
    cut = facts.packed.get("cut_answers", {}).get("train", 0)
    whole = sum(end["answers"] for end in facts.packed.get("ends", ()))
    return f"{note}; tokenize.max_length cut the end of {cut} of {cut + whole} answers of train" if cut else note
