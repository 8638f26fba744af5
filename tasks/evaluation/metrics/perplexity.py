"""The metric perplexity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.metrics.row_sums import RowSums


def perplexity(rows: RowSums) -> float:
    # e**709 is the last that a float holds; so bad a model needs no digits
    return math.exp(min(rows.total / max(int(rows.tokens.sum()), 1), 709.0))
