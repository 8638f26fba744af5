"""What tasks share whose targets are read from `format.target`, a float32 for each output of the model's head."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.kind import Kind, Metric, Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


class Outputs(NamedTuple):
    """What a model gave for rows, in the split's order.

    expected: float32 [rows, outputs]; values: the same of the model, probabilities or numbers; decided: the values, or 0
    and 1; loss: float64 [rows], the mean over outputs.
    """

    expected: NDArray[np.float32]
    values: NDArray[np.float32]
    decided: NDArray[np.float32]
    loss: NDArray[np.float64]


class TargetKind(Kind):
    """A task with float targets. A subclass gives `each_loss`, `target_of` and what users see."""

    reads_targets = True

    def each_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each target. Both are [rows, outputs]."""
        raise NotImplementedError

    def loss_sum(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor:
        there = ~targets.isnan()
        # a NaN must not reach the loss: its gradient is NaN, even where it is masked
        each = self.each_loss(logits, targets.where(there, targets.new_zeros(())))
        return each.where(there, each.new_zeros(())).sum()

    def values(self, outputs: Outputs) -> dict[str, float]:
        """Return {metric: value}."""
        return {m.name: float(m.of_sums(m.columns(outputs).sum(0), len(outputs.loss))) for m in self.metrics}

    def columns(self, settings: Any) -> tuple[str, ...]:
        targets: tuple[str, ...] = settings.targets
        return targets

    def check_rows(self, settings: Any, meta: Any) -> None:
        if meta["labels"] is not None:
            raise ConfigError(
                f"data.label makes one class of each row, and format.task is {self.name}",
                "leave data.label and data.labels out, and name the column in format.target",
            )
        missing = [name for name in settings.targets if name not in meta["columns"]]
        if missing:
            raise ConfigError(
                f"format.target: the rows have no column {missing[0]}",
                f"set it to what they have: {', '.join(meta['columns'])}",
            )


def loss_metric() -> Metric:
    """Return the mean of `Outputs.loss`."""
    return Metric(
        "loss", lambda outputs: outputs.loss[:, None], lambda sums, rows: sums[..., 0] / rows, less_is_better=True,
        hub="loss", may_promote=True,
    )  # fmt: skip


def value_of(row: Row, column: str, nested: Iterable[str], where: str) -> Any:
    """Return a row's value, of a nested column read from its JSON text. Raises DataError for a column that it lacks."""
    if column not in row:
        raise DataError(f"{where}: there is no column {column}", "name the column in format.target")
    value = row[column]
    return json.loads(value) if column in nested and isinstance(value, str) else value
