"""The report of a task whose rows are pairs of answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation.predictions import text_of, write_answers
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.evaluation.scores import intervals_of, values_of
from trnflow.tasks.kinds.registry import kind_of

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import TaskReport
    from trnflow.tasks.metadata import Task

WORST, LONGEST = 10, 500
"""Pairs that the report shows, and characters of their texts."""


def report_pairs(found: Any, packed: Input, task: Task, split: str, texts: Path, folder: Path) -> TaskReport:
    """Write predictions.parquet; return the report's entries, with all metrics. found: `Rewards` or `MarkedRewards`; task: the
    model's; texts: the split's rows."""
    import numpy as np

    rows = source_rows(packed, split)
    write_answers(kind_of(task).row_answers(found, []), found.loss, rows, texts, folder / "predictions.parquet")
    margins = found.margins
    return {
        "metrics": values_of(task, found),
        "intervals": intervals_of(task, found),
        "tokens": packed.meta["supervised_tokens"][split],
        "worst": [
            {
                "row": int(rows[at]) + 1,
                "label": found.verdict(at)[0],
                "predicted": found.verdict(at)[1],
                "loss": float(found.loss[at]),
                "text": text_of(texts, int(rows[at]))[:LONGEST],
            }
            for at in np.argsort(margins, kind="stable")[:WORST]
            if margins[at] <= 0
        ],
    }
