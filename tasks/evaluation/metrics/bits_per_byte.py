"""The metric bits_per_byte."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.metrics.row_sums import RowSums


def bits_per_byte(rows: RowSums) -> float | None:
    return float(rows.nll.sum() / math.log(2) / rows.bytes.sum()) if rows.bytes.any() else None
