"""Format the results of runs and plans as text: tables, durations, sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from trnflow.flows.runner.forecast import ANYWAY, dollars, total
from trnflow.flows.runner.plan import Step
from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.baselines.config import BASELINE, BEFORE
from trnflow.tasks.evaluation.scores import NAMES
from trnflow.tasks.keys.lineage import Change
from trnflow.tasks.system.terminal import one_line
from trnflow.tasks.training.automatic import open_settings

FIRST_METRICS = (*NAMES, "train_rows", "rows_truncated", "rows_unsupervised")
"""The names of the metrics that a table shows before all others, in this order."""

DIFFERENCES: tuple[Literal["settings", "data", "code", "env", "artifacts", "metrics"], ...] = (
    "settings", "data", "code", "env", "artifacts", "metrics",
)  # fmt: skip
"""The parts of `RunDifference`, in the order in which they are shown."""

MARKS = {"hit": "=", "ran": "+", "skip": "-", "run": "+", "maybe": "?"}
"""Action of a stage -> the sign before the stage's name in the progress: `=` for a hit (found in the store), for
example."""


def table(steps: list[Step]) -> list[str]:
    """Return the table of a finished run: stage, action, seconds, artifact, and main metrics, else the action's reason."""
    rows = [("stage", "", "seconds", "artifact", "key figures")]
    for step in steps:
        digest = step.artifact.digest.removeprefix("sha256:")[:12] if step.artifact else "-"
        rows.append((step.name, step.action, seconds(step.seconds), digest, highlights(step) or step.why))
    return aligned(rows)


def ended(steps: list[Step], notes: Sequence[str], verdict: Sequence[str]) -> list[str]:
    """Return how a run ended: its notes, and the table of its stages, whose last lines are the verdict.

    verdict: those of the notes that an evaluation says of the model, a sentence a line.
    """
    width = max(len(name) for name in ("verdict", *(step.name for step in steps)))
    names = ("verdict", *[""] * len(verdict))
    last = [f"{name:<{width}}  {one_line(text)}" for name, text in zip(names, verdict, strict=False)]
    return [*(f"note: {note}" for note in notes if note not in verdict), "", *table(steps), *last]


def plan_table(steps: list[Step], price_per_hour: float = 0.0) -> list[str]:
    """Return the table of a plan: stage, action, expected seconds and size, and why, with totals if any stage is due.

    price_per_hour: USD; above 0 the table has a column of dollars.
    """
    rows = [("stage", "action", "seconds", "size", "dollars", "why")]
    for step in steps:
        due = step.action not in ANYWAY
        expected = _expected(step.seconds, step.bytes, price_per_hour) if due else ("", "", "")
        rows.append((step.name, step.action, *expected, step.why))
    if any(step.action not in ANYWAY for step in steps):
        sums = total((step.to_json() for step in steps), price_per_hour)
        why = f"at least: no past of {', '.join(sums['unknown'])}" if sums["unknown"] else "if all of these run"
        rows.append(("total", "", *_expected(sums["seconds"], sums["bytes"], price_per_hour), why))
    # without a price all dollars would be 0
    return aligned(rows if price_per_hour else [(*row[:4], row[5]) for row in rows])


def chosen(training: Step, rows: str) -> str:
    """Say what settings of training that are `auto` mean; "" without any. rows: the stage that packs the rows."""
    names = [f"train.{name}" for name in open_settings(training.config)]
    if names:
        return f"{', '.join(names)}: not known before {rows} has run"
    return " ".join(f"train.{name}={value}" for name, value in training.chosen.items() if value is not None)


def _expected(time: float | None, size: int | None, price_per_hour: float) -> tuple[str, str, str]:
    return seconds(time), bytes_(size), "?" if time is None else f"{dollars(time, price_per_hour):.2f}"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table with aligned columns, for rows of equally many cells; the first row is the heading."""
    rows = [tuple(map(one_line, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def highlights(step: Step) -> str:
    """Return up to four results of a stage: metrics of its artifact, else facts such as its numbers of rows."""
    return figures(step.metrics or step.facts, own=step.artifact.meta.get("own", ()) if step.artifact else ())


def figures(values: Meta, most: int = 4, own: Sequence[str] = ()) -> str:
    """Return up to `most` metrics, such as `accuracy 0.91 (baseline 0.8)  loss 0.2`; the user's own and FIRST_METRICS come
    first. What a baseline has, or the model before training, stands behind the metric."""
    first = (*own, *FIRST_METRICS)
    places = {name: place for place, name in reversed([*enumerate(first)])}
    names = sorted(values, key=lambda name: (places.get(name, len(first)), name.endswith(f"_{BEFORE}")))
    alone = [
        name for name in names if not any(f"{other}_{end}" == name for other in values for end in (BASELINE, BEFORE))
    ]
    return "  ".join(_with_baselines(name, values) for name in alone[:most])


def _with_baselines(name: str, values: Meta) -> str:
    ends = [end for end in (BASELINE, BEFORE) if f"{name}_{end}" in values]
    beside = ", ".join(f"{end} {number(values[f'{name}_{end}'])}" for end in ends)
    return f"{name} {number(values[name])}" + (f" ({beside})" if beside else "")


def seconds(value: float | None) -> str:
    """Return seconds with two decimals below 10, else with none; `?` for None."""
    if value is None:
        return "?"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def bytes_(value: int | None) -> str:
    """Return a number of bytes with three digits, in B, kB, MB or GB (powers of 1000); `?` for None."""
    if value is None:
        return "?"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value} B"


def change_cells(change: Change) -> tuple[str, str, str]:
    """Return (name, value before, value after)."""
    name = " ".join(filter(None, (change.get("stage"), change.get("name"))))
    return name, _brief(change["before"]), _brief(change["after"])


def _brief(value: Any) -> str:
    text = "nothing" if value is None else number(value)
    return text[:19] if text.startswith("sha256:") else text[:60]


def number(value: Any) -> str:
    """Return a value for a table: floats with four significant digits, mappings as `name:value,...`."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ",".join(f"{name}:{number(item)}" for name, item in value.items())
    return str(value)
