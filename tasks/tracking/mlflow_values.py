"""Convert settings and metrics to the form that MLflow accepts: flat, with allowed characters only and limited lengths."""

from __future__ import annotations

import json
import re
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.scores import MAIN, NAMES, TRAINING

_NOT_IN_A_NAME = re.compile(r"[^\w./ -]")

PARAM_LENGTH = 6000

MOST_FIGURES = 8
ORDER = (*NAMES, "seconds", "samples_per_second", "tokens_per_second", "mfu", "dollars")
"""The single figures that a run shows first."""
SUMMARY = (
    *(f"evaluate_model/{name}" for name in MAIN),
    *(f"train/{name}" for name in (*TRAINING, "seconds")),
)
"""The single figures that a pipeline run shows of its stages."""


def main_figures(values: dict[str, float]) -> dict[str, float]:
    """Return at most eight of a run's metrics, the most important first.
    With more than eight, MLflow's page and tables of runs would hide the few that matter. The metrics that are left
    out stand in `report.json` and on the page of `trnflow report`.

    values: {metric: value}."""
    names = sorted(values, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return {name: values[name] for name in names[:MOST_FIGURES]}


def flatten(settings: Meta, prefix: str = "") -> dict[str, str]:
    """Flatten nested settings into parameters for MLflow: `{"train": {"learning_rate": 3e-5}}` -> `{"train.learning_rate":
    "3e-05"}`.

    Values become texts, cut to 6000 characters. prefix: put before each name.
    """
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[plain_name(f"{prefix}{name}")] = _text(value)
    return flat


def numbers(values: Meta, prefix: str = "") -> dict[str, float]:
    """Return the numbers in nested `values` as metrics for MLflow; the name of a nested value is `group/name`.

    Texts, lists and booleans are left out. prefix: put before each name.
    """
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[plain_name(f"{prefix}{name}")] = float(value)
    return flat


def plain_name(name: str) -> str:
    """Return a name that MLflow allows: characters that MLflow refuses are replaced by `_`, and the name is cut to 250
    characters."""
    return _NOT_IN_A_NAME.sub("_", name)[:250]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - 1] + "…"
