"""What tasks share whose targets are read from `format.target`: a float32 for each output, or a tag for each position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.kind import IGNORED, Kind, Metric, Row
from trnflow.tasks.system.json_numbers import loads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from trnflow.tasks.system.arrays import Floats


class Outputs(NamedTuple):
    """What a model gave for rows, in the split's order.

    expected: float32 [rows, outputs]; values: the same of the model, probabilities or numbers; decided: the values, or 0
    and 1; loss: float64 [rows], the mean over targets. Of positions expected and decided are int32 [rows, positions],
    IGNORED for none, and values the probability of what is decided.
    """

    expected: NDArray[Any]
    values: NDArray[np.float32]
    decided: NDArray[Any]
    loss: Floats


class TargetKind(Kind):
    """A task with targets in columns. A subclass gives `each_loss` and `target_of`, or `outputs` and `example_of`, and
    what users see."""

    reads_targets = True
    settings: tuple[str, ...] = ("target", "labels")

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

    def outputs(self, logits: Tensor, targets: Tensor) -> Outputs:
        """Return what a model gave for a batch, before anything is chosen on validation."""
        values, loss = self.values_of(logits).cpu().numpy(), self.each_loss(logits, targets).double().mean(-1)
        return Outputs(targets.cpu().numpy(), values, values, loss.cpu().numpy())

    def values(self, outputs: Outputs) -> dict[str, float]:
        """Return {metric: value}, without those that these rows do not give; of a broken model all."""
        values = {m.name: float(m.of_sums(m.columns(outputs).sum(0), len(outputs.loss))) for m in self.metrics}
        is_broken = math.isnan(float(outputs.loss.sum()))
        return {name: value for name, value in values.items() if is_broken or not math.isnan(value)}

    def answer(self, values: list[float], labels: list[str], decision: Meta) -> Meta:
        return {"scores": dict(zip(labels, values, strict=True))}

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


def stacked(arrays: Sequence[Any]) -> Any:
    """Return the rows of several arrays, in the second dimension filled up with IGNORED to the longest."""
    import numpy as np

    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    longest, rest = max(array.shape[1] for array in arrays), [(0, 0)] * (arrays[0].ndim - 2)
    fills = [[(0, 0), (0, longest - array.shape[1]), *rest] for array in arrays]
    return np.concatenate(
        [np.pad(array, fill, constant_values=IGNORED) for array, fill in zip(arrays, fills, strict=True)]
    )


def joined(parts: Sequence[Outputs]) -> Outputs:
    """Return the outputs of several batches as one."""
    return Outputs(*map(stacked, zip(*parts, strict=True)))


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
    return loads(value) if column in nested and isinstance(value, str) else value
