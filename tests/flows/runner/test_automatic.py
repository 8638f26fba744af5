"""`auto` of `train.epochs`, `train.learning_rate` and `train.class_weights`, from the plan to the published model's card, and
when rows come."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

import trnflow as tr
from tests.helpers.command_line import DATA, InProcessShell, write_project

AUTO = ("train.epochs=auto", "train.learning_rate=auto", "train.class_weights=auto")
TINY = (
    "tracking.enabled=false", "train.devices=1", "train.global_batch=8", "model.config.num_hidden_layers=1",
    "model.config.hidden_size=32", "model.config.intermediate_size=64", "export.target=none", "run.rehearse_above_minutes=null",
)  # fmt: skip
ON = ("--on", "cpu")


@pytest.mark.slow
def test_numbers_are_known_with_the_rows_and_stand_in_plan_config_card_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = InProcessShell(write_project(tmp_path / "house"))

    def actions(*overrides: str) -> dict[str, str]:
        stages = shell.json("run", "mine.yaml", "--direct", "--until", "consolidate", *ON, *TINY, *overrides)["stages"]
        return {stage["stage"]: stage["action"] for stage in stages}

    before = shell("plan", "mine.yaml", *ON, *TINY, *AUTO).stdout
    assert (
        "auto     train.epochs, train.learning_rate, train.class_weights: not known before pack_chunks has run"
        in before
    )
    assert yaml.safe_load(shell("config", "mine.yaml", *ON, *TINY, *AUTO).stdout)["train"]["epochs"] == "auto"
    shell.json("run", "mine.yaml", *ON, *TINY, *AUTO, "--until", *DATA[:2])
    # 40 rows in batches of 8, and a model from nothing: at most 20 passes
    after = shell("plan", "mine.yaml", *ON, *TINY, *AUTO).stdout
    assert "auto     train.epochs=20 train.learning_rate=0.001 train.class_weights=balanced\n" in after
    assert shell.json("plan", "mine.yaml", *ON, *TINY, *AUTO)["auto"] == {
        "train.epochs": 20, "train.learning_rate": 0.001, "train.class_weights": "balanced",
    }  # fmt: skip
    shown = yaml.safe_load(shell("config", "mine.yaml", *ON, *TINY, *AUTO).stdout)["train"]
    assert (shown["epochs"], shown["learning_rate"]) == (20, 0.001)
    assert "auto " not in shell("plan", "mine.yaml", *ON, *TINY).stdout
    monkeypatch.chdir(shell.folder)
    monkeypatch.delenv("TRNFLOW_HOME", raising=False)
    notes = tr.recipe("mine.yaml").set(on="cpu", train__epochs="auto", train__global_batch=8).plan().notes
    assert "auto: train.epochs=20" in notes

    assert actions(*AUTO)["train"] == "ran"
    assert {*actions(*AUTO).values()} == {"hit"}
    assert {*actions("train.epochs=20", "train.learning_rate=0.001", "train.class_weights=balanced").values()} == {
        "hit"
    }
    assert shell("get", "mine.yaml", "consolidate", "model", *ON, *TINY, *AUTO).returncode == 0
    card = ModelCard.load(shell.folder / "model" / "README.md").text
    assert "| epochs | 20 |" in card and "| learning\\_rate | 0.001 |" in card and "auto" not in card

    rows = shell.folder / "rows" / "train.jsonl"
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join(line.replace("train", f"train {n}") for n in range(20) for line in lines))
    shell.json("run", "mine.yaml", *ON, *TINY, *AUTO, "--until", *DATA[:2])
    planned = shell.json("plan", "mine.yaml", *ON, *TINY, *AUTO)
    assert planned["auto"]["train.epochs"] == 3
    assert {stage["stage"]: stage["action"] for stage in planned["stages"]}["train"] == "run"
