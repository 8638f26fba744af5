"""An update that overflowed is refused: the averages of the weights stay as they were."""

from __future__ import annotations

import pytest
import torch

from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.native.averages import Averages
from trnflow.tasks.training.partition_specs import Mesh, Spec
from trnflow.tasks.training.world import ALONE


@pytest.mark.parametrize(
    ("update", "is_good", "average"), [(1, True, 2.0), (1, False, 0.0), (5, True, 0.5), (5, False, 0.0)]
)
def test_only_a_good_update_moves_the_averages(update: int, is_good: bool, average: float) -> None:
    spec: dict[str, Spec] = {"weight": (None,)}
    layout = ShardLayout("toy", Mesh(1, 1), {"weight": (1,)}, spec, spec, spec, {}, {})
    weight = torch.zeros(1)
    averages = Averages(0.75, [weight], layout, ALONE, None)
    weight.fill_(2.0)
    averages.update(torch.tensor(is_good), update)
    assert [part.value.item() for part in averages.state()] == [average]
