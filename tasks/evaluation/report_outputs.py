"""Report the predictions of a task with targets in columns (`TargetKind`), or with pairs of answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation.evaluated_rows import LONGEST, WORST, EvaluatedRows, texts_of
from trnflow.tasks.evaluation.predictions import write_answers
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.evaluation.scores import intervals_of, values_of
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import Outputs

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import Neighbour, Retrieval, TaskReport
    from trnflow.tasks.metadata import Task


def report_outputs(found: Outputs, packed: Input, split: str, given: EvaluatedRows, folder: Path) -> TaskReport:
    """Write predictions.parquet and the plots to `folder`; return a split's part of report.json.

    found: what the model gave for the split of `packed`.
    """
    import numpy as np

    from trnflow.tasks.evaluation import plots

    task, labels = packed.meta["task"], packed.meta["labels"]
    kind, rows = kind_of(task), source_rows(packed, split)
    write_answers(kind.row_answers(found, labels), found.loss, rows, given, folder / "predictions.parquet")
    kind.draw(found, labels, folder, plots)
    worst = np.argsort(-found.loss, kind="stable")[:WORST]
    retrieved = [_retrieved(given.texts, rows, *of_row) for of_row in kind.nearest(found)]
    report: TaskReport = {
        "metrics": values_of(task, found),
        "intervals": intervals_of(task, found),
        "classes": kind.table(found, labels),
        "worst": [
            given.wrong(
                int(rows[at]),
                kind.shown(found.expected[at], labels),
                kind.shown(found.decided[at], labels),
                float(found.loss[at]),
            )
            for at in worst
        ],
    }
    # absent where nothing is retrieved, so that the bytes of other tasks' reports stay
    if retrieved:
        report["retrieved"] = retrieved
    return report


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


def _retrieved(texts: Path, rows: Any, row: int, place: int, nearest: list[tuple[float, int, int]]) -> Retrieval:
    """Return an anchor with the texts that are nearest to it, and its own. rows: of the predictions in `texts`."""
    asked, positive = texts_of(texts, int(rows[row]))[:2]
    found: list[Neighbour] = [
        {"cosine": cosine, "text": texts_of(texts, int(rows[at]))[which][:LONGEST]} for cosine, at, which in nearest
    ]
    return {
        "row": int(rows[row]) + 1,
        "asked": asked[:LONGEST],
        "positive": positive[:LONGEST],
        "place": place,
        "found": found,
    }
