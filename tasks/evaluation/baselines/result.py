"""What a baseline says of the evaluated rows, and why there is none."""

from __future__ import annotations

from typing import Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.stage import Workdir


class LeftOut(Exception):
    """There is no baseline. Its text says why."""


class Baseline(NamedTuple):
    """A baseline's predictions.

    Attributes:
        method: In words.
        rows: Of train that it learnt from.
        metrics: Those that the arrays give.
        arrays: {field of the task's columns: the baseline's array}, rows in the order of `source_rows`.
    """

    method: str
    rows: int
    metrics: tuple[str, ...]
    arrays: dict[str, Any]


def save_baseline(found: Baseline, out: Workdir) -> Meta:
    """Write the arrays, `<field>.npy` each; return metadata: method, rows, metrics (names)."""
    import numpy as np

    for name, values in found.arrays.items():
        np.save(out.path / f"{name}.npy", values, allow_pickle=False)
    return {"method": found.method, "rows": found.rows, "metrics": [*found.metrics]}
