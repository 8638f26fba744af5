"""Which rank holds what, without a rank: pieces make the whole, each written once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.errors import ModelError
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.layout.slices import (
    check_kinds,
    layout_of,
    piece,
    piece_copies,
    piece_shape,
    piece_start,
    writes_piece,
)
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.partition_specs import Mesh
from trnflow.tasks.training.world import World

MESHES = [Mesh(data, model) for data in (1, 2, 4) for model in (1, 2, 3)] + [Mesh(4, 1, 2), Mesh(6, 2, 3)]


@given(
    mesh=st.sampled_from(MESHES),
    axes=st.sampled_from([("data", "model"), ("model", None), (None, "data"), (None, None), ("model", "data", None)]),
    units=st.integers(1, 2),
)
def test_the_pieces_that_are_written_make_the_tensor(mesh: Mesh, axes: tuple[str | None, ...], units: int) -> None:
    shape = tuple(units * (mesh.parts(axis) if axis else 3) for axis in axes)
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    found, writers = torch.full(shape, -1), 0
    for rank in range(mesh.data * mesh.model):
        world = World(rank, mesh)
        part = piece(whole, axes, world)
        assert tuple(part.shape) == piece_shape(shape, axes, mesh)
        if writes_piece(axes, world):
            box = tuple(
                slice(at, at + size) for at, size in zip(piece_start(shape, axes, world), part.shape, strict=True)
            )
            assert (found[box] == -1).all()
            found[box] = part
            writers += 1
    assert torch.equal(found, whole)
    assert writers * piece_copies(axes, mesh) == mesh.data * mesh.model


def test_a_layer_that_can_not_be_split_is_refused(tmp_path: Path) -> None:
    config = TrainConfig(engine="native", devices=2, tensor_parallel_size=2)
    built = build(scratch(**LLAMA), packed_lm(tmp_path), seed=0, weights=False)
    layout = layout_of(config, built)
    assert layout.tp["model.layers.1.self_attn.o_proj.weight"] == (None, "model")
    assert layout.styles["model.layers.1.self_attn.o_proj"] == "rowwise"
    built.model._tp_plan = {**built.model.tp_plan, "model.norm": "colwise"}
    with pytest.raises(ModelError, match="model.norm.weight of LlamaForCausalLM belongs to a LlamaRMSNorm"):
        check_kinds(built, layout_of(config, built).tp)
