"""11. The same key and inputs give the same bytes, however many commands made them, killed ones among them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from subprocess import DEVNULL

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.command_line import InProcessShell, artifacts
from tests.helpers.waiting import wait_for

STAGES = (
    "load_data", "format_prompts", "tokenize_text", "pack_chunks", "train", "consolidate", "export_neuron", "evaluate_model",
)  # fmt: skip
SETTINGS = (
    "--direct",
    "--no-rehearse",
    "tracking.enabled=false",
    "--on",
    "cpu",
    "train.engine=native",
    "train.devices=1",
)
CLASSES = """
extends: demo
data: {split: {validation: 0.2, test: 0.2}, limit: 240}
train: {epochs: 1, global_batch: 16, checkpoint_every: 2, eval_every: 3, keep_best: true, label_smoothing: 0.1,
  class_weights: balanced, learning_rate_mapping: {embeddings: 1.0e-3, bert: 2.0e-3}}
evaluate: {export_rows: 4}
"""
ANSWERS = """
extends: demo-llm
data: {limit: 120}
model: {source: STORIES}
tokenize: {max_length: 128, train: null}
train: {epochs: 1, global_batch: 8, checkpoint_every: 3, eval_every: 5, tensor_parallel_size: 1, zero1: false,
  method: lora, lora: {rank: 2, rank_pattern: {q_proj: 4, v_proj: 2}}}
export: {target: none}
evaluate: {generation: {prompts: 2, max_new_tokens: 4}}
"""
TASKS = {"classes": CLASSES, "answers": ANSWERS}

Command = tuple[str, bool]
"""The stage that a command ends with, and whether it is killed there."""


def made_by(commands: Iterable[Command], folder: Path, recipe: str) -> dict[str, str]:
    """Return {stage: digest of its artifact, of all its files and metadata} in a store of its own."""
    folder.mkdir()
    (folder / "mine.yaml").write_text(recipe)
    shell = InProcessShell(folder)
    for stage, is_killed in commands:
        if is_killed:
            kill_in(stage, shell)
        else:
            shell.json("run", "mine.yaml", "--until", stage, *SETTINGS)
    return artifacts(shell, shell.json("run", "mine.yaml", *SETTINGS)["run"])


def kill_in(stage: str, shell: InProcessShell) -> None:
    """Kill a run, by SIGKILL, when the stage has begun; in train, when it has saved a state."""
    home = shell.folder / ".trnflow"
    logs = {*home.glob("runs/*/events.jsonl")}
    run = shell.start("run", "mine.yaml", *SETTINGS, stdout=DEVNULL, stderr=DEVNULL)

    def is_there() -> bool:
        lines = [json.loads(line) for log in {*home.glob("runs/*/events.jsonl")} - logs for line in complete(log)]
        begun = any(line["event"] == "stage_begun" and line["stage"] == stage for line in lines)
        return run.poll() is not None or (begun and (stage != "train" or any(home.glob("store/partial/*/*/COMMIT"))))

    wait_for(is_there, 120, pause=0.02)
    run.kill()
    run.wait()


def complete(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()


@pytest.mark.slow
def test_a_command_for_each_stage_and_a_killed_training_give_the_bytes_of_one_command(tmp_path: Path) -> None:
    whole = made_by([], tmp_path / "whole", CLASSES)
    each = [
        ("format_prompts", False),
        ("tokenize_text", False),
        ("train", True),
        ("train", False),
        ("consolidate", False),
    ]
    assert made_by(each, tmp_path / "each", CLASSES) == whole


@pytest.mark.nightly
@pytest.mark.parametrize("task", TASKS)
def test_no_sequence_of_commands_and_kills_changes_a_byte(task: str, tmp_path: Path, shared: Path) -> None:
    recipe = TASKS[task].replace("STORIES", str(shared / "assets" / "stories260K-hf"))
    whole, number = made_by([], tmp_path / "whole", recipe), iter(range(1000))
    # a stage that was made can't be killed in: a command that ends before the one of before does nothing
    sequences = st.lists(st.tuples(st.sampled_from(STAGES), st.booleans()), min_size=1, max_size=6)

    @settings(max_examples=8, suppress_health_check=[*HealthCheck])
    @given(sequences)
    def check(commands: list[Command]) -> None:
        assert made_by(commands, tmp_path / str(next(number)), recipe) == whole

    check()
