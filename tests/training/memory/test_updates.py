"""Bytes of gradients at the update, by layout."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.memory.estimate import _gradients_at_update
from trnflow.tasks.training.partition_specs import Mesh


@pytest.mark.parametrize(
    ("fields", "mesh", "state", "size"),
    [
        ({"devices": 1}, Mesh(1, 1), (None, None), 4 * 64),
        ({"devices": 2}, Mesh(2, 1), (None, None), 4 * 64 + 4 * 64),  # and a message of all over "data"
        ({"devices": 2, "zero1": True}, Mesh(2, 1), ("data", None), 4 * 64),
        ({"devices": 2, "tensor_parallel_size": 2}, Mesh(1, 2), (None, None), 4 * 64),  # nothing goes over "data"
    ],
)
def test_gradients_take_a_message_more_where_there_are_replicas(
    fields: dict[str, Any], mesh: Mesh, state: Any, size: int
) -> None:
    config = TrainConfig(engine="native", dtype="float32", global_batch=4, **fields)
    shapes, whole = {"weight": (8, 8)}, {"weight": (None, None)}
    layout = ShardLayout("toy", mesh, shapes, whole, whole, {"weight": state}, {}, {})
    assert _gradients_at_update(config, layout, ["weight"], 4) == size
