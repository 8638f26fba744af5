"""The report of a task whose rows are pairs of answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation.evaluated_rows import WORST, EvaluatedRows
from trnflow.tasks.evaluation.predictions import write_answers
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.evaluation.scores import intervals_of, values_of
from trnflow.tasks.kinds.registry import kind_of

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import TaskReport
    from trnflow.tasks.metadata import Task


def report_pairs(found: Any, packed: Input, task: Task, split: str, given: EvaluatedRows, folder: Path) -> TaskReport:
    """Write predictions.parquet; return the report's entries, with all metrics. found: `Rewards` or `MarkedRewards`; task: the
    model's."""
    import numpy as np

    rows = source_rows(packed, split)
    write_answers(kind_of(task).row_answers(found, []), found.loss, rows, given, folder / "predictions.parquet")
    margins = found.margins
    return {
        "metrics": values_of(task, found),
        "intervals": intervals_of(task, found),
        "tokens": packed.meta["supervised_tokens"][split],
        "worst": [
            given.wrong(int(rows[at]), found.verdict(at)[0], found.verdict(at)[1], float(found.loss[at]))
            for at in np.argsort(margins, kind="stable")[:WORST]
            if margins[at] <= 0
        ],
    }
