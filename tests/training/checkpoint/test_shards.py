"""Checkpoints of any layout come back whole, and equal tensors make equal bytes."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from trnflow.tasks.errors import ModelError
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.training.checkpoint.shards import Reader, save_tensors, write
from trnflow.tasks.training.shared_types import TensorSlice

KINDS = [torch.float64, torch.int64, torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.uint8, torch.bool]


def slices(tensor: torch.Tensor, columns: int) -> list[TensorSlice]:
    width = tensor.shape[1] // columns
    parts = [tensor[:, at * width : (at + 1) * width] for at in range(columns)]
    return [TensorSlice("w", at, (0, at * width), tuple(tensor.shape), part) for at, part in enumerate(parts)]


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_slices_make_the_tensor(tmp_path, columns: int) -> None:
    tensor = torch.randn(3, 8)
    write(tmp_path, slices(tensor, columns), {"step": 7})
    reader = Reader(tmp_path)
    assert reader.names == ["w"] and reader.shape("w") == (3, 8) and reader.state == {"step": 7}
    assert torch.equal(reader.tensor("w"), tensor)
    assert len(list(tmp_path.glob("*.safetensors"))) == columns


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_a_part_is_that_of_the_whole_tensor(tmp_path, columns: int) -> None:
    """Also where it begins or ends within a slice, as on a mesh that splits otherwise."""
    tensor = torch.arange(24.0).reshape(3, 8)
    write(tmp_path, slices(tensor, columns), {})
    for first, last in combinations(range(9), 2):
        at = (slice(1, 3), slice(first, last))
        assert torch.equal(Reader(tmp_path).part("w", at), tensor[at]), at


def test_the_same_tensors_make_the_same_bytes(tmp_path) -> None:
    tensor = torch.randn(3, 8)
    for name in ("a", "b"):
        write(tmp_path / name, slices(tensor.clone(), 2), {})
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_a_missing_slice_is_noticed(tmp_path) -> None:
    write(tmp_path, slices(torch.randn(3, 8), 4)[:3], {})
    with pytest.raises(ModelError, match="are incomplete"):
        Reader(tmp_path).tensor("w")
    with pytest.raises(ModelError, match="holds no tensor v"):
        Reader(tmp_path).tensor("v")


@given(
    named=st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    )
)
def test_shards_have_the_bytes_that_safetensors_would_write(named: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    tensors = {name: (torch.rand(shape) * 9).to(kind) for name, (kind, shape) in named.items()}
    with TemporaryDirectory() as folder:
        mine, theirs = Path(folder, "mine"), Path(folder, "theirs")
        digest = save_tensors(mine, tensors)
        save_file(tensors, theirs)
        assert mine.read_bytes() == theirs.read_bytes() and digest == sha256_file(theirs)


def test_the_checkpoint_of_another_model_is_refused(tmp_path) -> None:
    write(tmp_path, [*slices(torch.randn(3, 8), 2), TensorSlice("first/w", 0, (0,), (1,), torch.zeros(1))], {})
    reader = Reader(tmp_path)
    reader.check_model("first/", {"w": (1,)})
    for shapes, told in [
        ({"w": (1,), "v": (2, 2)}, r"its v is missing, and this model's has shape \[2, 2\]"),
        ({}, r"its w has shape \[1\], and this model's is missing"),
        ({"w": (2,)}, r"its w has shape \[1\], and this model's has shape \[2\]"),
    ]:
        with pytest.raises(ModelError, match=f"is of another model: {told}"):
            reader.check_model("first/", shapes)
