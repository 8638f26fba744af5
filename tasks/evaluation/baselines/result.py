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
        arrays: {field of the task's columns: the baseline's array}, rows in the order of `source_rows`.
        orders: Whether its numbers say which row has more, and not how much.
    """

    method: str
    rows: int
    arrays: dict[str, Any]
    orders: bool = False


def save_baseline(found: Baseline, out: Workdir) -> Meta:
    """Write the arrays, `<field>.npy` each; return metadata: method, rows, orders."""
    import numpy as np

    for name, values in found.arrays.items():
        np.save(out.path / f"{name}.npy", values, allow_pickle=False)
    return {"method": found.method, "rows": found.rows, "orders": found.orders}
