"""The arrays that predicting makes, and their files: `<field>.npy` each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trnflow.tasks.system.arrays import Bools, Floats, Ints

Columns = TypeVar("Columns", bound=tuple[Any, ...])


class ClassPredictions(NamedTuple):
    """A classifier's predictions, in the split's order.

    expected, predicted: int64 [rows]; probabilities: float32 [rows, classes]; loss: float64 [rows], in nats.
    """

    expected: Ints
    predicted: Ints
    probabilities: NDArray[np.float32]
    loss: Floats


class RowLosses(NamedTuple):
    """A language model's losses by row of format_prompts, ascending. All are [rows].

    nll: in nats; tokens: supervised ones; bytes: of their text in UTF-8; cut: tokens were left out, or the row was
    divided.
    """

    row: Ints
    nll: Floats
    tokens: Ints
    bytes: Ints
    cut: Bools


def save_columns(columns: Any, folder: Path) -> None:
    import numpy as np

    for name, values in columns._asdict().items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)


def load_columns(kind: type[Columns], folder: Path) -> Columns:
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind(*(load_array(folder / f"{name}.npy") for name in names))
