"""Operators without a deterministic kernel: refused by name, or taken where the recipe asks for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.run_stage import run_stage, traced_and_trained
from tests.training.toys import BERT, first_rows, packed_classes, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import CompileError, ModelError
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.stage import Workdir, stage, stage_of
from trnflow.tasks.train import TrainConfig, environ, train
from trnflow.tasks.training.choose_engine import make_engine
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.native.determinism import _place
from trnflow.tasks.training.optim.optimizer import scalars


@stage(kind="checkpoint", environ=environ)
def trains_with_put(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """An update of a model with `Tensor.put`, which has no deterministic kernel on any device. The loss is in "loss"."""
    import torch

    built = build(model, packed, seed=0, weights=True)

    def put(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        return output.put(torch.zeros(1, dtype=torch.long), output.new_zeros(1))

    built.model.get_submodule("bert.embeddings").register_forward_hook(put)
    engine = make_engine(config, built, GraphRegistry())
    batch, _ = first_rows(packed, 8)
    ((loss, _, good),) = engine.fetch([engine.train(batch, scalars(config, 0, 1, batch.supervised), seed=0)])
    return {"loss": loss, "good": good}


def test_an_operator_without_a_deterministic_kernel_is_named_with_the_fix(tmp_path: Path) -> None:
    inputs: dict[str, Any] = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed", lengths=[8])}
    config = TrainConfig(engine="native", global_batch=8)
    with pytest.raises(
        ModelError, match="^put_ has no deterministic kernel on device cpu, and train.deterministic is true"
    ) as caught:
        run_stage(trains_with_put, config, tmp_path / "strict", **inputs)
    assert "train.deterministic=false" in caught.value.fix
    free = config.model_copy(update={"deterministic": False})
    found = run_stage(trains_with_put, free, tmp_path / "free", **inputs).artifact.meta
    assert found["good"] == 1 and found["loss"] > 0


@stage(kind="checkpoint", environ=environ)
def compiles_shapes_that_differ(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """An update of a compiled model, in whose first layer a hook multiplies with a matrix that does not fit."""
    import torch

    built = build(model, packed, seed=0, weights=True)

    def multiply(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        return output @ torch.ones(3, 3)

    built.model.get_submodule("bert.encoder.layer.0.intermediate").register_forward_hook(multiply)
    engine = make_engine(config, built, GraphRegistry())
    batch, _ = first_rows(packed, 8)
    engine.train(batch, scalars(config, 0, 1, batch.supervised), seed=0)
    return {}


@stage(kind="checkpoint", environ=lambda config: {**environ(config), "CXX": "/bin/false"})
def trained_without_a_compiler(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    return traced_and_trained(config, model, packed, out)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (compiles_shapes_that_differ, r"0 at test_determinism.py:\d+, in multiply: .*size=\(3, 3\)"),
        (trained_without_a_compiler, r"0.*: InvalidCxxCompiler: No working C\+\+ compiler found"),
    ],
)
def test_a_failed_compilation_names_the_place_and_the_way_without(function: Any, message: str, tmp_path: Path) -> None:
    inputs: dict[str, Any] = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed", lengths=[8])}
    config = TrainConfig(engine="native", global_batch=8, compile=True, max_steps=1)
    with pytest.raises(CompileError, match=f"torch.compile failed in bert.encoder.layer.{message}") as caught:
        run_stage(function, config, tmp_path / "run", **inputs)
    assert "train.compile=false" in caught.value.fix


def test_the_place_of_a_failure_is_the_innermost_line() -> None:
    error: Any = RuntimeError("no")
    assert _place(error) == ""
    lines = {"train.py": "loop", "layers.py": "forward", "model.py": "attend"}
    error.real_stack = [
        SimpleNamespace(filename=f"/x/{file}", lineno=len(name), name=name) for file, name in lines.items()
    ]
    assert _place(error) == " at model.py:6, in attend"
    error.block = "layer.0"
    assert _place(error) == " in layer.0 at model.py:6, in attend"


def test_it_is_keyed_and_of_engine_native_alone() -> None:
    keyed = [
        canonical(stage_of(train).params(TrainConfig(engine="native", deterministic=one))) for one in (True, False)
    ]
    assert keyed[0] != keyed[1]
    with pytest.raises(ValueError, match="deterministic=false is for engine native"):
        TrainConfig(deterministic=False)
