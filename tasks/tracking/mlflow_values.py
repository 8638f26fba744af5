"""Convert settings and metrics to what MLflow accepts: flat, allowed characters, limited lengths."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.scores import MAIN, NAMES, TRAINING

_NOT_IN_A_NAME = re.compile(r"[^\w./ -]")

PARAM_LENGTH = 6000

MOST_FIGURES = 8
ORDER = (*NAMES, "seconds", "samples_per_second", "tokens_per_second", "mfu", "dollars")
"""The single figures that a run shows first."""
SUMMARY = (*(f"evaluate_model/{name}" for name in MAIN), *(f"train/{name}" for name in (*TRAINING, "seconds")))
"""The single figures that a run shows of its stages."""


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


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - 1] + "…"
