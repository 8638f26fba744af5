"""A mixture of experts computes as before when it has been lowered, or could not be."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.tasks.export.lowering import experts_of_one_shape


class Model:
    def __init__(self, can: bool) -> None:
        self.way, self.can = "grouped_mm", can

    def _can_set_experts_implementation(self) -> bool:
        return self.can

    def get_experts_implementation(self) -> str:
        return self.way

    def set_experts_implementation(self, way: str) -> None:
        self.way = way


@pytest.mark.parametrize(("can", "within"), [(True, "batched_mm"), (False, "grouped_mm")])
def test_experts_compute_in_one_shape_within_and_as_before_afterwards(can: bool, within: str) -> None:
    model: Any = Model(can)
    with experts_of_one_shape(model):
        assert model.way == within
    assert model.way == "grouped_mm"
    with pytest.raises(RuntimeError), experts_of_one_shape(model):
        raise RuntimeError("it can't be lowered")
    assert model.way == "grouped_mm"
    with experts_of_one_shape(object()):
        pass
