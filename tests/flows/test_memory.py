"""`plan` says what training will hold beside what a device has, and refuses what can't fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows import settings
from flows.memory import outlook
from flows.run import look, open_store
from tests.flows.test_main import Shell

RECIPE = """
data: {source: rows.jsonl, text: text, label: label, labels: [pos, neg], split: {validation: 0.2, test: 0.2}}
format: {task: classification}
model: {config: {model_type: %s, hidden_size: 512, intermediate_size: 2048}}
tokenize: {train: {vocab_size: 8192}, max_length: 128}
pack: {strategy: pad, chunk_length: 512}
train: {engine: native, global_batch: 64}
hardware: {name: my card, memory_gib: %s}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    rows = (f'{{"text": "row {n}", "label": "{("pos", "neg")[n % 2]}"}}\n' for n in range(40))
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    return tmp_path


def looked(folder: Path, *overrides: str, kind: str = "bert", memory: float = 32) -> Any:
    (folder / "mine.yaml").write_text(RECIPE % (kind, memory))
    recipe = settings.load("mine.yaml", overrides)
    planner = look(recipe, open_store(recipe))
    return planner, outlook(recipe, planner)


def test_the_rows_yet_to_be_made_are_as_the_recipe_says(folder: Path) -> None:
    planner, found = looked(folder)
    assert planner.outcomes["train"].action == "maybe"
    assert (found.exact, found.error, found.config.replica_batch) == (False, None, 64)
    parameters = 8192 * 512 + 12 * (4 * 512 * 512 + 2 * 512 * 2048)
    assert found.memory.optimizer == pytest.approx(8 * parameters, rel=0.05)
    assert found.memory.at == "the backward pass" and found.memory.activations > found.memory.optimizer
    longer = looked(folder, "tokenize.max_length=512")[1]
    assert longer.memory.activations > 4 * found.memory.activations


def test_auto_is_what_fits_and_the_stages_below_wait_for_precompile(folder: Path) -> None:
    planner, found = looked(folder, "train.micro_batch=auto", memory=4)
    assert found.error is None and found.memory.total <= found.limit < looked(folder)[1].memory.total
    assert 1 <= found.config.replica_batch < 64
    assert planner.outcomes["train"].why == "waits for pack_chunks and precompile"


def test_a_family_that_is_not_known_is_left_to_precompile(folder: Path) -> None:
    assert str(looked(folder, kind="albert")[1]) == (
        "memory   precompile will tell: this family of models is not known by its numbers"
    )


def test_memory_is_that_of_the_hardware_the_recipe_runs_on(folder: Path) -> None:
    assert settings.load("bert-emotion").training.device_memory_gib == 16
    elsewhere = settings.load("bert-emotion", ["train.device=cpu", "train.devices=1"])
    assert elsewhere.training.device_memory_gib is None
    assert settings.load("bert-emotion", ["train.device_memory_gib=9"]).training.device_memory_gib == 9


def test_what_cannot_fit_is_refused_with_the_numbers(folder: Path) -> None:
    (folder / "mine.yaml").write_text(RECIPE % ("bert", 2))
    trnflow = Shell(folder)
    said = trnflow.error("plan", "mine.yaml", code=1)
    assert "on each device, which has 2.0 (parameters 0.2, optimizer 0.3, activations" in said
    document = json.loads(trnflow("plan", "mine.yaml", "--json").stdout)
    assert document["error"]["type"] == "ModelError" and not document["memory"]["fits"]
    assert document["memory"]["device_bytes"] == 2 << 30
    allowed = trnflow("plan", "mine.yaml", "train.allow_overcommit=true")
    assert allowed.returncode == 0 and "of 2.0 GiB a device" in allowed.stdout
