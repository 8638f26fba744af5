"""The files of a StableHLO export, without the runtime; test_export_neuron runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.tasks.errors import ModelError
from trnflow.tasks.export.lowering import Graph, Spec
from trnflow.tasks.export.stablehlo import load_stablehlo, producer, write_stablehlo
from trnflow.tasks.stage import read_json, write_json

BYTECODE = b"ML\xefR\rStableHLO_v1.13.0\x00..."


def graph(**tensors) -> Graph:
    arguments = [("tensor", Spec(name, list(tensor.shape), "float32")) for name, tensor in tensors.items()]
    return Graph(
        BYTECODE,
        [*arguments, ("input", Spec("input_ids", [1, 8], "int64"))],
        [Spec("logits", [1, 2], "float32")],
        tensors,
    )


def written(tmp_path: Path, stored: dict, graphs: dict[int, Graph], renamed: dict[str, str] | None = None) -> Path:
    from safetensors.torch import save_file

    weights, folder = tmp_path / "weights", tmp_path / "export"
    weights.mkdir()
    folder.mkdir()
    save_file(stored, weights / "model.safetensors")
    write_stablehlo(
        folder,
        graphs,
        weights,
        {"inputs": ["input_ids", "attention_mask"], "batch": 1, "task": "causal_lm"},
        renamed or {},
    )
    return folder


def names(folder: Path, length: int) -> list[str]:
    return [item["name"] for item in read_json(folder / "export.json")["functions"][str(length)]["arguments"]]


def test_weights_are_the_models_own_file(tmp_path: Path) -> None:
    import torch

    weight = torch.arange(4.0)
    folder = written(tmp_path, {"head": weight}, {8: graph(head=weight.clone())})
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "weights" / "model.safetensors").read_bytes()
    assert not (folder / "constants.safetensors").exists()
    assert names(folder, 8) == ["head", "input_ids"]


def test_a_tied_weight_is_found_under_its_other_name(tmp_path: Path) -> None:
    import torch

    shared = torch.arange(6.0).reshape(2, 3)
    folder = written(tmp_path, {"embed": shared.clone()}, {8: graph(lm_head=shared, embed=shared)})
    assert names(folder, 8) == ["embed", "embed", "input_ids"]
    assert not (folder / "constants.safetensors").exists()


def test_a_weight_that_transformers_renames_is_found_under_its_published_name(tmp_path: Path) -> None:
    import torch

    head = torch.arange(6.0).reshape(2, 3)
    folder = written(tmp_path, {"embed_out": head}, {8: graph(lm_head=head.clone())}, {"lm_head": "embed_out"})
    assert names(folder, 8) == ["embed_out", "input_ids"]
    assert not (folder / "constants.safetensors").exists()


def test_constants_are_shared_between_lengths_only_when_equal(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    one = graph(frequencies=torch.ones(2), positions=torch.zeros(8))
    other = graph(frequencies=torch.ones(2), positions=torch.zeros(16))
    folder = written(tmp_path, {"head": torch.zeros(1)}, {8: one, 16: other})
    assert names(folder, 16) == ["frequencies", "positions.16", "input_ids"]
    assert sorted(load_file(folder / "constants.safetensors")) == ["frequencies", "positions", "positions.16"]


@pytest.mark.parametrize(("value", "dtype"), [(1, "float32"), (0, "float16")])
def test_a_weight_that_differs_from_the_file_is_kept_apart(tmp_path: Path, value: int, dtype: str) -> None:
    import torch

    made = torch.full((2,), value, dtype=getattr(torch, dtype))
    folder = written(tmp_path, {"head": torch.zeros(2)}, {8: graph(head=made)})
    assert names(folder, 8) == ["head.8", "input_ids"]


def test_what_wrote_the_bytecode() -> None:
    assert producer(BYTECODE) == "StableHLO_v1.13.0"
    assert producer(b"module {}") == "unknown"


def test_an_export_knows_its_shapes(tmp_path: Path) -> None:
    import torch

    program = load_stablehlo(written(tmp_path, {"head": torch.zeros(1)}, {16: graph(), 8: graph()}))
    assert (program.lengths, program.batch) == ([8, 16], 1)
    with pytest.raises(ModelError, match=r"takes 1 rows of \[8, 16\] tokens, not 2 of 8"):
        program(torch.ones(2, 8), torch.ones(2, 8))


@pytest.mark.parametrize("document", [None, {"format": "other"}, {"format": "trnflow-stablehlo", "version": 99}])
def test_other_folders_are_refused(tmp_path: Path, document: dict | None) -> None:
    if document is not None:
        write_json(tmp_path / "export.json", document)
    with pytest.raises(ModelError, match="holds no StableHLO export"):
        load_stablehlo(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    import torch

    folder = written(tmp_path, {"head": torch.zeros(1)}, {8: graph(head=torch.zeros(1))})
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="the tensor head"):
        load_stablehlo(folder)(torch.ones(1, 8), torch.ones(1, 8))
