"""What MLflow shows: settings and metrics as it accepts them (flat, allowed characters, limited lengths), the columns of
its table of runs, and a figure."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.baselines.config import BASELINE, BEFORE
from trnflow.tasks.evaluation.scores import MAIN, NAMES, TRAINING
from trnflow.tasks.tracking.addresses import VIEW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOT_IN_A_NAME = re.compile(r"[^\w./ -]")

PARAM_LENGTH = 6000

MOST_FIGURES = 8
COMPARED = tuple(f"{name}_{end}" for name in MAIN for end in (BASELINE, BEFORE))
ORDER = (*MAIN, *COMPARED, *NAMES[len(MAIN) :], "seconds", "samples_per_second", "tokens_per_second", "mfu", "dollars")
"""The single figures that a run shows first."""
SUMMARY = (
    *(f"evaluate_model/{name}" for name in (*MAIN, *COMPARED)),
    *(f"train/{name}" for name in (*TRAINING, "seconds")),
)
"""The single figures that a run shows of its stages."""

VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""The tag of an experiment that holds the view."""
NAME_PIXELS, METRIC_PIXELS = 360, 210  # of a run: for a recipe's name of up to 17 letters


def main_figures(values: dict[str, float], own: Sequence[str] = ()) -> dict[str, float]:
    """Return at most eight of a run's metrics, the user's own and then the most important first."""
    # with more, MLflow's tables would hide the few that matter; report.json has all
    order = (*own, *ORDER)
    names = sorted(values, key=lambda name: order.index(name) if name in order else len(order))
    return {name: values[name] for name in names[:MOST_FIGURES]}


def flatten(settings: Meta, prefix: str = "") -> dict[str, str]:
    """Return nested settings as parameters: `{"train": {"learning_rate": 3e-5}}` -> `{"train.learning_rate":
    "3e-05"}`."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[plain_name(f"{prefix}{name}")] = _text(value)
    return flat


def numbers(values: Meta, prefix: str = "") -> dict[str, float]:
    """Return the numbers in nested `values` as metrics `group/name`."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[plain_name(f"{prefix}{name}")] = float(value)
    return flat


def plain_name(name: str) -> str:
    """Return a name that MLflow allows: other characters as `_`, 250 at most."""
    return _NOT_IN_A_NAME.sub("_", name)[:250]


def saved_view() -> str:
    """Return the value of VIEW_TAG, in the form in which MLflow's page (3.17) saves a view: of itself the page shows no
    metric, and cuts names."""
    # the page leaves out a metric that no run has
    metrics = {f"metrics.`{name}`": METRIC_PIXELS for name in SUMMARY}
    widths = {"attributes.`Run Name`": NAME_PIXELS} | metrics
    columns = [*metrics, "attributes.`Dataset`", "attributes.`Models`"]
    state = {"selectedColumns": columns, "columnOrder": list(widths), "columnWidths": widths}
    return json.dumps({"name": VIEW, "createdAt": int(time.time() * 1000), "state": json.dumps(state)})


def lengths_figure(lengths: dict[str, dict[str, int]]) -> Figure:
    """Return a bar chart of the share of rows by tokens. lengths: {split: {"<upper bound>": rows}}."""
    from matplotlib.figure import Figure

    bins = sorted({int(most) for rows in lengths.values() for most in rows})
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(lengths)
    for number, (split, rows) in enumerate(lengths.items()):
        total = sum(rows.values())
        at = [index + (number - (len(lengths) - 1) / 2) * width for index in range(len(bins))]
        axes.bar(at, [rows.get(str(most), 0) / total for most in bins], width, label=f"{split}: {total:,} rows")
    axes.set_xticks(range(len(bins)), [f"{most // 2 + 1}-{most}" if most > 2 else str(most) for most in bins])
    axes.set(xlabel="tokens a row", ylabel="share of rows")
    axes.tick_params(axis="x", rotation=45)
    axes.legend(frameon=False)
    return figure


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - 1] + "…"
