"""`plan` says what training takes beside what a device has; `plan` and `run` refuse what can't fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.stores import new_store
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import open_store, plan_of
from trnflow.flows.runner.memory_check import UNTRACED, checkpoint_bytes, report_memory
from trnflow.tasks.training.memory.estimate import Memory
from trnflow.tasks.training.memory.trace_process import _trace

RECIPE = """
data: {source: rows.jsonl, text: text, label: label, labels: [pos, neg], split: {validation: 0.2, test: 0.2}}
format: {task: classification}
model: {config: {model_type: %s, hidden_size: 512, num_attention_heads: 8, intermediate_size: 2048}}
tokenize: {train: {vocab_size: 8192}, max_length: 128}
pack: {strategy: pad, chunk_length: 128}
train: {engine: native, global_batch: 64}
hardware: {name: my card, memory_gib: %s}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def folder(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNFLOW_HOME", str(home))
    rows = (f'{{"text": "row {n}", "label": "{("pos", "neg")[n % 2]}"}}\n' for n in range(40))
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    return tmp_path


def reported(folder: Path, *overrides: str, kind: str = "bert", memory: float = 32, trace: bool = True) -> Any:
    (folder / "mine.yaml").write_text(RECIPE % (kind, memory))
    recipe = settings.load("mine.yaml", overrides)
    plan = plan_of(finetune(recipe), recipe, open_store(recipe))
    return plan, report_memory(recipe, plan, _trace if trace else None)


def test_the_rows_yet_to_be_made_are_as_the_recipe_says(folder: Path) -> None:
    plan, found = reported(folder)
    assert plan.steps["train"].action == "maybe"
    assert (found.exact, found.error, found.config.replica_batch) == (False, None, 64)
    parameters = 8192 * 512 + 12 * (4 * 512 * 512 + 2 * 512 * 2048)
    assert found.memory.optimizer == pytest.approx(8 * parameters, rel=0.05)
    assert found.memory.at == "the backward pass" and found.memory.activations > found.memory.optimizer
    longer = reported(folder, "pack.chunk_length=512")[1]
    assert longer.memory.activations > 4 * found.memory.activations
    assert str(found).startswith("memory   about ") and "micro batch 64" in str(found)


def test_checkpoints_take_room_in_the_store_and_one_at_a_time_beside_a_remote_one(tmp_path: Path) -> None:
    config = settings.load("demo", ["train.keep_checkpoints=3", "train.devices=1", "train.zero1=false"]).training
    memory = Memory(parameters=0, gradients=0, optimizer=1000, activations=0, runtime=0, at="the update")
    assert checkpoint_bytes(config, new_store(tmp_path), memory) == 3 * 1500
    assert checkpoint_bytes(config, new_store(tmp_path, "memory://checkpoints"), memory) == 1500


def test_what_was_never_traced_is_said_and_traced_once(folder: Path) -> None:
    """A model of a family for which there is nothing special, as any."""
    never = reported(folder, kind="albert", trace=False)[1]
    assert str(never) == f"memory   {UNTRACED}" and never.to_json()["estimate"] is None
    traced = reported(folder, kind="albert")[1]
    assert reported(folder, kind="albert", trace=False)[1] == traced
    assert traced.memory.total > 0
    assert reported(folder, "train.remat=true", kind="albert", trace=False)[1].memory is None


def test_buckets_yet_to_be_found_are_counted_by_their_bound_and_refuse_nothing(folder: Path) -> None:
    found = reported(folder, "pack.strategy=bucket", "tokenize.max_length=32", memory=0.75)[1]
    assert found.memory.total > found.limit and found.error is None
    given = reported(folder, "pack.strategy=bucket", "pack.lengths=[16,32]", memory=0.75)[1]
    assert given.memory.total == found.memory.total and given.error is not None


def test_auto_is_what_fits_and_the_stages_below_wait_for_precompile(folder: Path) -> None:
    plan, found = reported(folder, "train.micro_batch=auto", memory=4)
    assert found.error is None and found.memory.total <= found.limit < reported(folder)[1].memory.total
    assert 1 <= found.config.replica_batch < 64
    assert plan.steps["train"].why == "waits for pack_chunks and precompile"


def test_memory_is_that_of_the_hardware_the_recipe_runs_on(folder: Path) -> None:
    assert settings.load("bert-emotion").training.device_memory_gib == 16
    elsewhere = settings.load("bert-emotion", ["train.device=cpu", "train.devices=1"])
    assert elsewhere.training.device_memory_gib is None
    assert settings.load("bert-emotion", ["train.device_memory_gib=9"]).training.device_memory_gib == 9


def test_what_cannot_fit_is_refused_with_the_numbers(folder: Path) -> None:
    """By `plan` once it is traced, and by `run` before it loads data."""
    (folder / "mine.yaml").write_text(RECIPE % ("bert", 2))
    trnflow = InProcessShell(folder)
    assert UNTRACED in trnflow("plan", "mine.yaml").stdout
    said = trnflow.error("run", "mine.yaml", "--direct", "--no-rehearse", "tracking.enabled=false", code=1)
    assert "on each device, which has 2.0 (parameters 0.2, optimizer 0.3, activations" in said
    said = trnflow.error("plan", "mine.yaml", code=1)
    assert "on each device, which has 2.0 (parameters 0.2, optimizer 0.3, activations" in said
    document = json.loads(trnflow("plan", "mine.yaml", "--json").stdout)
    assert document["stages"][0]["action"] == "run"
    assert document["error"]["type"] == "ModelError" and not document["memory"]["fits"]
    assert document["memory"]["device_bytes"] == 2 << 30
    allowed = trnflow("plan", "mine.yaml", "train.allow_overcommit=true")
    assert allowed.returncode == 0 and "of 2.0 GiB a device" in allowed.stdout


def test_plan_traces_when_asked_to_and_refuses_a_layout_that_does_not_fit_the_model(folder: Path) -> None:
    (folder / "mine.yaml").write_text(RECIPE % ("bert", 32))
    trnflow = InProcessShell(folder)
    assert "of 32.0 GiB a device" in trnflow("plan", "mine.yaml", "--trace").stdout
    split = ("train.devices=5", "train.tensor_parallel_size=5", "train.global_batch=5")
    assert "num_attention_heads" in trnflow.error("plan", "mine.yaml", "--trace", *split, code=1)
