"""A first training's time and the space of its checkpoints, by hand; `test_expected_time.py` and `test_memory_check.py` have
real rows and models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner import expected_time
from trnflow.flows.runner.expected_time import expect_training, parameters_of, training_seconds
from trnflow.flows.runner.memory_check import checkpoint_bytes
from trnflow.tasks.training.memory.estimate import Memory

HERE = (
    "train.engine=native", "train.device=cpu", "train.dtype=float32", "train.devices=1", "train.threads=1", "train.remat=false",
    "train.global_batch=32", "train.micro_batch=8", "train.zero1=false",
)  # fmt: skip
CONFIG = {"hidden_size": 100, "num_hidden_layers": 4, "intermediate_size": 300, "vocab_size": 5000}


def planned(*overrides: str, packed: Any = None, action: str = "run", seconds: float | None = None) -> Any:
    """A recipe and its plan, whose rows are packed: 1,000 of 64 tokens and 20 of 128."""
    recipe = settings.load("demo", [*HERE, *overrides])
    meta = packed or {"rows": {"train": {"64": 1000, "128": 20}}, "labels": ["bad", "good"]}
    training = SimpleNamespace(name="train", config=recipe.training, action=action, seconds=seconds)
    plan = SimpleNamespace(
        roles={"training": training, "chunks": SimpleNamespace(artifact=SimpleNamespace(meta=meta))},
        sources={"model": SimpleNamespace(identity={"config": {"pretrained": CONFIG, "overrides": {}}})},
    )
    return recipe, plan


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten cores, each with 1e9 FLOPs a second."""
    monkeypatch.setattr(expected_time, "flops_per_second", lambda: 1e9)
    monkeypatch.setattr(expected_time, "cores", lambda: 10)


POSITIONS, ROWS = 1000 * 64 + 20 * 128, 1020
PRODUCTS = 4 * 100 * (4 * 100 + 2 * 300)
ATTENTION = 2 * 4 * 100 * POSITIONS / ROWS


def by_hand(updates: int, passes: int, heads: int = 0, threads: int = 1) -> float:
    """A quarter of the processor's speed, 3 s to begin, 1.5 ms a layer and update."""
    flops = 2 * (PRODUCTS + heads + ATTENTION) * passes * POSITIONS * updates * 32 / ROWS
    return 3 + flops / (0.25e9 * threads) + 0.0015 * 4 * updates


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("train.epochs=2",), by_hand(2 * 32, 3)),  # 1020 rows are 31.9 batches
        (("train.max_steps=10",), by_hand(10, 3)),
        (("train.max_steps=10", "train.method=head"), by_hand(10, 1)),
        (("train.max_steps=10", "train.method=lora"), by_hand(10, 2)),
        (("train.max_steps=10", "train.remat=true"), by_hand(10, 4)),
        (("train.max_steps=10", "train.threads=4"), by_hand(10, 3, threads=4)),
        (("train.max_steps=10", "train.threads=64"), by_hand(10, 3, threads=10)),
    ],
)
def test_a_trainings_seconds_follow_from_its_multiplications(overrides: tuple[str, ...], expected: float) -> None:
    recipe, plan = planned(*overrides)
    assert training_seconds(recipe, plan) == pytest.approx(expected)


def test_of_another_device_or_type_of_numbers_nothing_is_known() -> None:
    assert training_seconds(*planned("train.dtype=bfloat16")) is None
    assert training_seconds(*planned("train.device=cuda", "train.dtype=float32")) is None


def test_an_estimate_is_said_where_no_earlier_run_tells() -> None:
    recipe, plan = planned("train.max_steps=10", seconds=7.0)
    assert expect_training(recipe, plan) == "" and plan.roles["training"].seconds == 7.0
    recipe, plan = planned("train.max_steps=10", action="hit")
    assert expect_training(recipe, plan) == ""
    recipe, plan = planned("train.max_steps=1000")
    assert "train takes about 6 hours on this machine: an estimate" in expect_training(recipe, plan)
    assert plan.roles["training"].seconds == pytest.approx(by_hand(1000, 3))


def test_the_size_of_a_model_is_that_of_its_config() -> None:
    """BERT base has 110 million parameters, GPT-2 124; a text model within another counts, and an override."""

    def size(overrides: Any = {}, **pretrained: Any) -> float:  # noqa: B006
        return round(parameters_of({"pretrained": pretrained or None, "overrides": overrides}) / 1e6)

    assert size(hidden_size=768, num_hidden_layers=12, intermediate_size=3072, vocab_size=30522) == 108
    assert size(n_embd=768, n_layer=12, vocab_size=50257) == 124
    assert (
        size(text_config={"hidden_size": 100, "num_hidden_layers": 10, "intermediate_size": 400, "vocab_size": 0}) == 1
    )
    assert size({"num_hidden_layers": 6}, hidden_size=768, num_hidden_layers=12, vocab_size=0) == 42


@pytest.mark.parametrize(
    ("overrides", "shards"),
    [
        ((), 1),
        (("train.zero1=true", "train.devices=4"), 4),
        (("train.fsdp=true", "train.devices=4"), 4),
        (("train.fsdp=true", "train.devices=4", "train.dp_replicate_size=2"), 2),
        (("train.tensor_parallel_size=2", "train.devices=4"), 2),
    ],
)
def test_checkpoints_hold_each_part_of_the_state_once(tmp_path: Path, overrides: tuple[str, ...], shards: int) -> None:
    """AdamW's moments are 8 bytes a parameter, the fp32 weights beside them 4."""
    config = settings.load("demo", [*HERE, "train.keep_checkpoints=3", *overrides]).training
    memory = Memory(parameters=0, gradients=0, optimizer=8000, activations=0, runtime=0, at="the update")
    assert checkpoint_bytes(config, new_store(tmp_path), memory) == 3 * shards * 12_000
    assert checkpoint_bytes(config, new_store(tmp_path, "memory://estimates"), memory) == shards * 12_000
