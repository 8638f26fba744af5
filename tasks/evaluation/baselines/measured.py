"""Measure the baselines by the functions that measure the model, on the same rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.tables import write_rows
from trnflow.tasks.evaluation.columns import ClassPredictions, RowLosses, load_columns
from trnflow.tasks.evaluation.config import GENERATIONS
from trnflow.tasks.evaluation.metrics.row_sums import RowSums
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.evaluation.scores import SCORES, Score, accuracy
from trnflow.tasks.kinds.kind import IGNORED
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import BaselineReport

NOT_WRITTEN = ("label", "probabilities", "desirable")
"""Columns that predictions.parquet has, and numbers that are no probabilities."""


def measure_baselines(
    kept: Mapping[str, Input | None], predicted: Input, packed: Input, task: str, to: Path
) -> list[BaselineReport]:
    """Write `<name>.parquet` of each baseline; return its entry of the report.

    kept: {name: what `fit_baseline` or `predict_before` made}; predicted: of `predict_rows`; task: the model's.
    """
    entries: list[BaselineReport] = []
    for name, baseline in kept.items():
        if baseline is None:
            continue
        if "left_out" in baseline.meta:
            entries.append({"name": name, "left_out": baseline.meta["left_out"]})
            continue
        columns = baseline_columns(baseline, predicted, task)
        metrics = _metrics(columns, baseline, predicted, task)
        _write(columns, predicted, packed, task, to / f"{name}.parquet")
        entries.append(
            {"name": name, "method": baseline.meta["method"], "rows": baseline.meta["rows"], "metrics": metrics}
        )
    return entries


def _metrics(columns: Any, baseline: Input, predicted: Input, task: str) -> dict[str, float]:
    of_tokens = isinstance(columns, RowLosses)
    rows = RowSums(columns.nll, columns.tokens, columns.bytes, baseline.meta["total"]) if of_tokens else columns
    values = {entry.name: entry(rows) for entry in SCORES if entry.task == task and _tells(entry, baseline)}
    metrics = {metric: value for metric, value in values.items() if value is not None and isfinite(value)}
    return metrics | (ended(_answered(predicted.path / GENERATIONS), "before_ended") if of_tokens else {})


def _tells(entry: Score, baseline: Input) -> bool:
    """Return whether a metric can be taken of a baseline, which gives no probabilities. baseline: what it predicts."""
    kind = kind_of(entry.task)
    if entry.of_texts:
        return False
    if kind.one_class:
        return entry.may_promote
    # margins are in units of the model's own
    return entry.hub == accuracy.hub if kind.pairs else not (baseline.meta["orders"] and entry.less_is_better)


def metrics_of(entries: Sequence[BaselineReport]) -> dict[str, float]:
    """Return {metric with the baseline's name at its end: value}."""
    return {
        f"{metric}_{entry['name']}": value for entry in entries for metric, value in entry.get("metrics", {}).items()
    }


def ended(lines: Sequence[Mapping[str, Any]], field: str) -> dict[str, float]:
    """Return the share of generated texts that ended, of no texts nothing. lines: of generations.jsonl; field: `ended`, or
    `before_ended`."""
    known = [line[field] for line in lines if field in line]
    return {"ended": sum(known) / len(known)} if known else {}


def _answered(file: Path) -> list[Any]:
    with file.open(encoding="utf-8") as lines:
        return [line for line in map(json.loads, lines) if line["answer"] is not None]


def model_columns(predicted: Input, task: str) -> Any:
    """Return what the model said of the rows, as its task has it. Arguments as of `measure_baselines`."""
    kind = kind_of(task)
    whole = (
        ClassPredictions
        if kind.one_class
        else Outputs
        if kind.reads_targets
        else kind.rewards
        if kind.pairs
        else RowLosses
    )
    return load_columns(whole, predicted.path)


def baseline_columns(baseline: Input, predicted: Input, task: str) -> Any:
    """Return the model's columns with those of a baseline in their place, row by row. Losses, which it has not, are NaN.

    Arguments as of `measure_baselines`.
    """
    import numpy as np

    kind, columns = kind_of(task), model_columns(predicted, task)
    files = {name: baseline.path / f"{name}.npy" for name in columns._fields}
    arrays = {name: load_array(file) for name, file in files.items() if file.exists()}
    if kind.per_position and kind.reads_targets:
        arrays["decided"] = _at_words(columns.expected, arrays["decided"])
    if "loss" in columns._fields:
        arrays["loss"] = np.full_like(columns.loss, np.nan)
    return columns._replace(**arrays)


def _at_words(expected: Any, tags: Any) -> Any:
    """Return tags at the positions that have any. expected: int32 [rows, positions]; tags: int32 [words]."""
    decided = expected.copy()
    decided[expected != IGNORED] = tags
    return decided


def _write(columns: Any, predicted: Input, packed: Input, task: str, to: Path) -> None:
    """Write row, and what the baseline says of it, in the order of rows."""
    import numpy as np
    import pyarrow as pa

    kind, labels = kind_of(task), predicted.meta.get("labels") or []
    if isinstance(columns, RowLosses):
        rows, answers = columns.row, dict[str, Any](nll=columns.nll)
    else:
        rows = source_rows(packed, predicted.meta["split"])
        named = {"predicted": [labels[at] for at in columns.predicted]} if kind.one_class else None
        answers = named or kind.row_answers(columns, labels)
    order = np.argsort(rows, kind="stable")
    shown = {name: values for name, values in answers.items() if name not in NOT_WRITTEN}
    in_order = {name: pa.array([values[at] for at in order]) for name, values in shown.items()}
    table = pa.table({"row": rows[order] + 1, **in_order})
    write_rows([table], table.schema, to, lambda count: None)
