"""What a rank of a mesh adds to the totals: each element and each row counts once, on however many ranks it lies."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.native.gradient_exchange import MeshExchange, SingleProcess
from trnflow.tasks.training.partition_specs import Mesh, Spec
from trnflow.tasks.training.world import World


@pytest.fixture
def groups() -> Iterator[dict[str, SimpleNamespace]]:
    """A group of this process alone, in place of each of a rank's."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    group = SimpleNamespace(get_group=lambda: dist.group.WORLD)
    yield {"data": group, "model": group}
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("mesh", "spec", "copies"),
    [
        (Mesh(2, 2), (None, None), 4),
        (Mesh(2, 2), (None, "model"), 2),
        (Mesh(4, 1), ("data", None), 1),
        (Mesh(4, 1, copies=2), ("data", None), 2),
        (Mesh(2, 2), ("data", "model"), 1),
    ],
)
def test_each_rank_adds_its_share_of_squares_and_of_a_replica_s_loss(
    mesh: Mesh, spec: Spec, copies: int, groups: dict[str, SimpleNamespace]
) -> None:
    gradient = torch.arange(12.0).view(3, 4)
    layout = ShardLayout("toy", mesh, {"w": (12, 8)}, {"w": spec}, {"w": spec}, {"w": spec}, {}, {})
    exchange = MeshExchange(layout, World(0, mesh, groups), set(), None, zero1=False)
    for _ in range(2):  # what is kept of the first time is the same
        numbers, norm = exchange.totals(torch.tensor([6.0, 2.0]), [gradient])
        assert numbers.tolist() == [6 / mesh.model, 2 / mesh.model], "ranks along model have the same rows"
        assert float(norm) ** 2 == pytest.approx(506 / copies)  # 506 is the sum of squares up to 11
    numbers, norm = SingleProcess().totals(torch.tensor([6.0]), [gradient])
    assert numbers.tolist() == [6] and float(norm) ** 2 == pytest.approx(506)


def test_what_has_no_gradient_has_a_gradient_of_zeros_in_fp32() -> None:
    parameters = [torch.ones(2, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)]
    one, none = SingleProcess().gradients(parameters, [torch.full((2,), 0.5, dtype=torch.bfloat16), None])
    assert one.dtype == none.dtype == torch.float32 and one.tolist() == [0.5] * 2 and none.tolist() == [0] * 3
