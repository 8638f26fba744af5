"""The inventory: what it lists, what moves it, and that training meets exactly it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.training.run_stage import ManyConfig, Stage, counted, files_of, inventories, run_stage
from tests.training.toys import BERT, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Artifact, Input, Source
from trnflow.tasks.errors import CompileError, MissingDependency, ModelError
from trnflow.tasks.precompile import precompile
from trnflow.tasks.stage import Workdir, read_json, stage_of, write_json
from trnflow.tasks.train import TrainConfig, train
from trnflow.tasks.training.graphs.inventory import inventory
from trnflow.tasks.training.graphs.neuron_precompile import compile_graphs

BASE: dict[str, Any] = {"global_batch": 8, "devices": 2}
WITHOUT_A_TRACE: list[dict[str, Any]] = [
    {"learning_rate": 3e-3, "schedule": "cosine", "warmup_ratio": 0.5},
    {"seed": 7, "epochs": 9, "weight_decay": 0.0},
    {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "max_grad_norm": None},
]
WITH_A_TRACE: list[dict[str, Any]] = [
    {"dtype": "bfloat16"},
    {"zero1": True},
    {"remat": True},
    {"remat": 2},
    {"method": "head"},
    {"method": "lora", "lora": {"rank": 4}},
    {"method": "lora", "lora": {"rank": 2}},
    {"method": "lora", "lora": {"rank": 4, "dropout": 0.1}},
    {"method": "lora", "lora": {"rank": 4, "targets": "all-linear"}},
    {"micro_batch": 2},
]


def key(config: TrainConfig, model: Any = None, **meta: Any) -> Any:
    packed = Artifact(
        "sha256:0", "packed", {"task": "classification", "lengths": [8], "labels": ["a", "b"], **meta}, ()
    )
    described = stage_of(precompile)
    inputs = described.inputs(config, {"model": model or scratch(**BERT), "packed": packed})
    return described.params(config), inputs, described.accel(config)


def test_the_key_holds_what_reaches_a_graph() -> None:
    plain = key(TrainConfig(**BASE))
    for fields in WITHOUT_A_TRACE:
        assert key(TrainConfig(**BASE, **fields)) == plain
    for fields in WITH_A_TRACE:
        assert key(TrainConfig(**BASE, **fields)) != plain
    weighted = [key(TrainConfig(**BASE, class_weights=weights)) for weights in ("balanced", {"a": 2.0})]
    assert weighted[0] == weighted[1] != plain  # how large they are is no part of a graph
    assert key(TrainConfig(**BASE), labels=["c", "d"]) == plain
    assert key(TrainConfig(**BASE), labels=["a", "b", "c"]) != plain
    assert key(TrainConfig(**BASE), lengths=[8, 16]) != plain
    assert key(TrainConfig(**BASE), scratch(**{**BERT, "hidden_size": 64})) != plain


@pytest.mark.xla
def test_equal_keys_have_equal_hashes(tmp_path) -> None:
    configs = [TrainConfig(**BASE, **fields) for fields in [{}, *WITHOUT_A_TRACE, *WITH_A_TRACE]]
    model, packed = scratch(**BERT), packed_classes(tmp_path / "packed")
    found = run_stage(inventories, ManyConfig(configs=tuple(configs)), tmp_path / "run", model=model, packed=packed)
    plain, *others = found.artifact.meta["graphs"]
    assert sorted(plain) == ["eval/16", "eval/8", "train/16", "train/8"]
    assert len(set(plain.values())) == 4
    assert others[: len(WITHOUT_A_TRACE)] == [plain] * len(WITHOUT_A_TRACE)
    for fields, other in zip(WITH_A_TRACE, others[len(WITHOUT_A_TRACE) :], strict=True):
        assert other != plain, fields
    assert sorted(others[-1]) == ["accumulate/16", "accumulate/8", "eval/16", "eval/8", "update/0"]


@pytest.mark.xla
def test_training_meets_the_inventory_and_nothing_else(tmp_path) -> None:
    """Listed in another process, under another learning rate and seed; then one hash is spoilt."""
    inputs: dict[str, Any] = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed", rows=16)}
    graphs = run_stage(precompile, TrainConfig(**BASE), tmp_path / "graphs", **inputs).artifact
    listed = read_json(graphs.path / "graphs.json")["graphs"]
    assert [(graph["name"], graph["length"]) for graph in listed] == [
        ("eval", 8),
        ("eval", 16),
        ("train", 8),
        ("train", 16),
    ]
    assert listed[-1]["flops"] > listed[0]["flops"] > 0 and listed[0]["inputs"][0] == {
        "shape": [8, 8],
        "dtype": "int32",
    }

    config = TrainConfig(**BASE, epochs=2, learning_rate=1e-2, seed=3)
    found = run_stage(train, config, tmp_path / "train", **inputs, graphs=graphs)
    assert found.figures["compiled_graphs"] == 4

    listed[-1]["hash"] = "0" * 32
    write_json(graphs.path / "graphs.json", {"engine": "xla", "graphs": listed})
    with pytest.raises(CompileError, match=r"graph train of length 16 is .* listed it as 000000000000") as caught:
        run_stage(train, config, tmp_path / "refused", **inputs, graphs=graphs)
    assert "allow_recompile" in caught.value.fix


@pytest.mark.xla
def test_nothing_else_compiles(tmp_path) -> None:
    """With warm-up, evaluation, checkpoints and accumulation; and once more when it goes on from a checkpoint."""
    fields = {"micro_batch": 2, "warmup_ratio": 0.5, "epochs": 2, "checkpoint_every": 5, "log_every": 3, "zero1": True}
    config = TrainConfig(**BASE, **fields)
    inputs: dict[str, Any] = {
        "model": scratch(**BERT),
        "packed": packed_classes(tmp_path / "packed", rows=32, lengths=[8]),
    }
    found = [Stage(counted, config, tmp_path / name, tmp_path / "partial", **inputs).result() for name in ("a", "b")]
    assert "resumes at step 5" in found[1].said("info")  # of 8: its last checkpoint is still there
    for one in found:
        assert one.figures["compiled_graphs"] == one.figures["all_compiled"] == 3  # accumulate, update, eval
        assert one.figures["compile_seconds"] > 0
    assert files_of(found[0].artifact) == files_of(found[1].artifact)


def test_native_refuses_an_unlisted_shape(tmp_path) -> None:
    inputs: dict[str, Any] = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "short", lengths=[8])}
    config = TrainConfig(engine="native", global_batch=8, epochs=1)
    graphs = run_stage(precompile, config, tmp_path / "graphs", **inputs).artifact
    inputs["packed"] = packed_classes(tmp_path / "long", lengths=[16])
    with pytest.raises(CompileError, match="of length 16 .* did not list it .*int32"):
        run_stage(train, config, tmp_path / "refused", **inputs, graphs=graphs)
    allowed = config.model_copy(update={"allow_recompile": True})
    found = run_stage(train, allowed, tmp_path / "allowed", **inputs, graphs=graphs)
    assert any("did not list it" in text for text in found.said("warn"))


@pytest.mark.parametrize(
    ("error", "fields", "text"),
    [
        pytest.param(MissingDependency, {"device": "neuron"}, "Neuron compiler.*Neuron SDK", marks=pytest.mark.xla),
        (ModelError, {"device": "cuda", "engine": "native"}, "no GPU here.*train.device=cpu"),
        pytest.param(
            ModelError,
            {"devices": 4, "tensor_parallel_size": 4},
            "2 heads .*which 4 tensor parallel devices do not divide",
            marks=pytest.mark.xla,
        ),
    ],
)
def test_what_is_not_there_is_named(tmp_path, error, fields, text) -> None:
    with pytest.raises(error) as caught:
        run_stage(
            precompile,
            TrainConfig(**fields),
            tmp_path / "run",
            model=scratch(**BERT),
            packed=packed_classes(tmp_path / "packed"),
        )
    assert caught.match("(?s)" + text)


@pytest.mark.parametrize(
    ("fields", "model", "text"),
    [
        ({"devices": 3, "tensor_parallel_size": 3}, LLAMA, "4 heads .* which 3 tensor parallel devices do not divide"),
        (
            {"devices": 2, "tensor_parallel_size": 2},
            {**BERT, "model_type": "albert"},
            "has no tp_plan, and no rules are known",
        ),
        ({"devices": 4, "tensor_parallel_size": 4, "sequence_parallel": True}, LLAMA, "splits 18 positions over 4"),
    ],
)
def test_native_refuses_a_layout_before_any_rank_is_started(tmp_path, fields, model, text) -> None:
    config = TrainConfig(engine="native", global_batch=6, **fields)
    out = Workdir(tmp_path / "out", tmp_path / "scratch", lambda event: None)
    packed = packed_lm(tmp_path / "packed", length=18) if model is LLAMA else packed_classes(tmp_path / "packed")
    with pytest.raises(ModelError, match=text):
        inventory(config, scratch(**model), packed, out)


def test_native_lists_a_mesh_without_ranks(tmp_path) -> None:
    """The layout is part of the hash: it is another computation."""
    out, packed = Workdir(tmp_path, tmp_path, lambda event: None), packed_lm(tmp_path / "packed")
    layouts: list[dict[str, Any]] = [{}, {"zero1": True}, {"fsdp": True}, {"tensor_parallel_size": 2}]
    found = []
    for layout in layouts:
        config = TrainConfig(engine="native", devices=4, global_batch=8, **layout)
        graphs = inventory(config, scratch(**LLAMA), packed, out)
        assert [(graph["name"], graph["length"]) for graph in graphs] == [("eval", 16), ("train", 16)]
        found.append(graphs[0]["hash"])
    assert len(set(found)) == len(layouts)


@pytest.mark.parametrize(("micro", "rows"), [(2, 2), (None, 4)])
def test_the_list_says_how_many_rows_a_replica_computes_at_once(micro: int | None, rows: int, tmp_path) -> None:
    config = TrainConfig(engine="native", devices=2, global_batch=8, micro_batch=micro)
    given = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed")}
    made = run_stage(precompile, config, tmp_path / "run", **given).artifact
    assert made.meta["micro_batch"] == read_json(made.path / "graphs.json")["micro_batch"] == rows


@pytest.mark.xla
@pytest.mark.nightly
def test_sequence_parallelism_needs_lengths_that_divide(tmp_path) -> None:
    config = TrainConfig(devices=4, tensor_parallel_size=4, sequence_parallel=True)
    packed = packed_lm(tmp_path / "packed", length=18)
    with pytest.raises(ModelError, match="splits 18 positions over 4"):
        run_stage(precompile, config, tmp_path / "run", model=scratch(**LLAMA), packed=packed)


STAND_IN = """#!/bin/sh
echo "raise SystemExit(open('imported', 'w').write('json'))" > json.py
shift 2
exec "$@"
"""


def test_a_trial_run_imports_no_file_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utility, out = tmp_path / "neuron_parallel_compile", Workdir(tmp_path / "out", tmp_path, lambda event: None)
    utility.write_text(STAND_IN)
    utility.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    config = TrainConfig(**BASE, xla_processes="one")
    with pytest.raises(CompileError, match="the trial run"):  # there is no model
        compile_graphs(config, Source("model", {}), Input(tmp_path, "packed", {}, "sha256:0"), out)
    assert (tmp_path / "json.py").exists() and not (tmp_path / "imported").exists()
