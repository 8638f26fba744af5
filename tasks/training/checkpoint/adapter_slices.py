"""The slices of an adapter that began with a part of the base's weights, as they are published: for the base as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from trnflow.tasks.training.model.lora import A
from trnflow.tasks.training.shared_types import PARAMETER, TensorSlice

if TYPE_CHECKING:
    from torch import Tensor


def beside_initial(
    slices: Iterable[TensorSlice], initial: Mapping[str, Tensor], device: int | None
) -> Iterator[TensorSlice]:
    """Yield the slices, those of `initial` as halves: [A; initial A] and [B, -initial B], whose product is what training
    changed.

    device: whose file takes the other halves, in which no trained slice lies; None: another process writes them.
    """
    for part in slices:
        name = part.name.removeprefix(PARAMETER)
        yield part._replace(whole=_widened(name, part.whole)) if name in initial else part
    if device is None:
        return
    for name, value in initial.items():
        rows, columns = value.shape
        start, half = ((rows, 0), value) if A in name else ((0, columns), -value)
        yield TensorSlice(PARAMETER + name, device, start, _widened(name, (rows, columns)), half.float())


def _widened(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (2 * shape[0], shape[1]) if A in name else (shape[0], 2 * shape[1])
