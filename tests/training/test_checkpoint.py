"""Checkpoints of any layout come back whole, and equal tensors make equal bytes."""

from __future__ import annotations

import pytest
import torch

from tasks.errors import ModelError
from tasks.training.checkpoint import Reader, write
from tasks.training.engine import Box


def boxes(tensor: torch.Tensor, columns: int) -> list[Box]:
    width = tensor.shape[1] // columns
    parts = [tensor[:, at * width : (at + 1) * width] for at in range(columns)]
    return [Box("w", at, (0, at * width), tuple(tensor.shape), part) for at, part in enumerate(parts)]


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_slices_make_the_tensor(tmp_path, columns: int) -> None:
    tensor = torch.randn(3, 8)
    write(tmp_path, boxes(tensor, columns), {"step": 7})
    reader = Reader(tmp_path)
    assert reader.names == ["w"] and reader.shape("w") == (3, 8) and reader.state == {"step": 7}
    assert torch.equal(reader.tensor("w"), tensor)
    assert len(list(tmp_path.glob("*.safetensors"))) == columns


def test_the_same_tensors_make_the_same_bytes(tmp_path) -> None:
    tensor = torch.randn(3, 8)
    for name in ("a", "b"):
        write(tmp_path / name, boxes(tensor.clone(), 2), {})
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_a_missing_slice_is_noticed(tmp_path) -> None:
    write(tmp_path, boxes(torch.randn(3, 8), 4)[:3], {})
    with pytest.raises(ModelError, match="do not make it whole"):
        Reader(tmp_path).tensor("w")
    with pytest.raises(ModelError, match="holds no tensor v"):
        Reader(tmp_path).tensor("v")
