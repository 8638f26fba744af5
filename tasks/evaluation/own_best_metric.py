"""Measure a `train.best_metric` that is a function of the user's, in a process of its own at each evaluation."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data.limited_process import call_own
from trnflow.tasks.data.proof import go_elsewhere
from trnflow.tasks.evaluation.best_metric import SPLIT, predictions_of
from trnflow.tasks.evaluation.own_metrics import called_twice, own_number, read_seen, sorted_seen
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.keys.own_functions import function_of
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Workdir

if TYPE_CHECKING:
    from trnflow.tasks.training.selection import Validated

SETTING = "train.best_metric"


def measure(
    metric: Source, *, packed: Input, rows: Input, texts: Input, out: Workdir, **unused: Any
) -> Callable[[Validated], float]:
    """Return what computes the user's metric of an evaluation; the first time it is computed twice, as a proof."""
    kind, proved = kind_of(packed.meta["task"]), list[bool]()

    def value(seen: Validated) -> float:
        predicted, folder = predictions_of(kind, seen), out.scratch / "validated"
        # of the evaluation before
        shutil.rmtree(folder, ignore_errors=True)
        arrays = predicted._asdict()
        if kind.reads_targets:
            names = {"expected": "expected", "predicted": "decided", "probabilities": "values", "loss": "loss"}
            arrays = {name: arrays[theirs] for name, theirs in names.items()}
        order, labels = source_rows(packed, SPLIT), packed.meta["labels"]
        written = sorted_seen(folder, packed, texts, rows, SPLIT, order, arrays, labels)
        asked = {"hook": SETTING, "code": vars(metric), "name": metric.location["name"], "seen": written}
        function = f"{__name__}:called"
        values = (
            call_own(function, {**asked, "elsewhere": False})
            if proved
            else called_twice(function, asked, out.scratch / "proof")
        )
        proved.append(True)
        return float(values[metric.location["name"]])

    return value


def called(arguments: Meta, limit: Any) -> dict[str, float]:
    """Return {metric: value}, in the process of the user's function."""
    code, predictions = Source(**arguments["code"]), read_seen(arguments["seen"])
    if arguments["elsewhere"]:
        go_elsewhere()
    limit(f"the {len(predictions)} rows of {predictions.split}")
    name = arguments["name"]
    return {name: own_number(function_of(code, SETTING), name, code, predictions, SETTING)}
