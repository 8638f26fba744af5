"""Rows that move in the user's file without a change re-run no stage above the evaluation, whose page has their new numbers."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.helpers.command_line import DATA, InProcessShell, Shell
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes.recipe import load
from trnflow.flows.runner.context import context_of
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import run
from trnflow.tasks.events import EventLog
from trnflow.tasks.store import Store

RECIPE = (
    "extends: demo\nname: mine\ndata: {source: tickets.csv, name: null, text: body, label: team, nulls: drop,\n"
    "  split: {validation: 0.2, test: 0.3}, dedupe: true}\n"
    "tokenize: {max_length: 64, train: {vocab_size: 200}}\npack: {chunk_length: 64}\n"
    "train: {max_steps: 2, devices: 1}\nexport: {target: none}\n"
)


def project(folder: Path) -> Shell:
    teams = ("billing", "delivery", "returns")
    rows = [
        {"id": f"T-{n}", "body": f"ticket {n}", "team": teams[(n * 7 + n // 5) % 3], "when": f"2026-01-{1 + n % 28}"}
        for n in range(120)
    ]
    pd.DataFrame(rows).to_csv(folder / "tickets.csv", index=False)
    (folder / "mine.yaml").write_text(RECIPE)
    return InProcessShell(folder)


def insert_at_the_top(shell: Shell, line: str) -> None:
    file = shell.folder / "tickets.csv"
    header, rows = file.read_text().split("\n", 1)
    file.write_text(f"{header}\n{line}\n{rows}")


def actions(found: Any) -> dict[str, str]:
    return {stage["stage"]: stage["action"] for stage in found["stages"]}


def test_a_column_that_nothing_reads_reruns_the_loading_alone(tmp_path: Path) -> None:
    shell = project(tmp_path)
    shell.json("run", "mine.yaml", "--until", *DATA)
    file = tmp_path / "tickets.csv"
    file.write_text(file.read_text().replace("2026-01-", "2027-02-"))
    again = shell.json("run", "mine.yaml", "--until", *DATA)
    below = dict.fromkeys(("format_prompts", "tokenize_text", "pack_chunks"), "hit")
    assert actions(again) == {"load_data": "ran", **below}
    # lineage goes by what keys count of the rows
    made = {stage["stage"]: stage["artifact"] for stage in again["stages"]}
    node = shell.json("lineage", made["pack_chunks"])["up"]
    for name in ("tokens", "texts", "rows"):
        node = node["inputs"][name]
    assert (node["stage"], node["artifact"]) == ("load_data", made["load_data"])
    assert {child["stage"] for child in shell.json("lineage", made["load_data"])["down"]} == {"format_prompts"}


@pytest.mark.slow
def test_the_evaluation_follows_rows_that_moved_and_nothing_is_trained_or_predicted(tmp_path: Path) -> None:
    shell = project(tmp_path)
    arguments = ("mine.yaml", "--direct", "tracking.enabled=false")
    shell.json("run", *arguments)
    before, kept = evaluated(shell, "before"), shards(shell)
    insert_at_the_top(shell, "T-none,,billing,2026-01-01")
    again = shell.json("run", *arguments)
    # the number of dropped rows is in the metadata of load_data, and the texts are the same
    ran = {stage for stage, action in actions(again).items() if action == "ran"}
    assert ran == {"load_data", "format_prompts", "evaluate_model"}
    assert shards(shell) == kept
    after = evaluated(shell, "after")
    assert [(each["row"], each["file_row"] + 1) for each in before] == [
        (each["row"], each["file_row"]) for each in after
    ]
    user = pd.read_csv(tmp_path / "tickets.csv", keep_default_na=False)
    for entry in after:
        row = user.iloc[entry["file_row"] - 1]
        assert (entry["file"], entry["text"]) == ("tickets.csv", row["body"])
        assert entry["columns"] == {"id": row["id"], "when": row["when"]}


def shards(shell: Shell) -> int:
    """How many predictions of models and baselines the store has."""
    return len([*(shell.folder / ".trnflow/store/records/evaluate_model.shard").iterdir()])


def test_another_machine_goes_on_from_rows_whose_places_it_did_not_fetch(tmp_path: Path) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    recipe = load(str(project(tmp_path).folder / "mine.yaml"), ["store.min_free_gb=0"])
    for machine, until in (("one", "load_data"), ("other", "format_prompts")):
        store = Store(root, tmp_path / machine)
        store.prepare()
        opened = context_of(recipe, store).for_run(EventLog(), run=machine)
        result = run(finetune(recipe), opened, Options(until, record=False))
        assert result.error is None
    assert {step.name: step.action for step in result.steps if step.artifact} == {
        "load_data": "hit",
        "format_prompts": "ran",
    }


def evaluated(shell: Shell, name: str) -> list[Any]:
    """The worst errors of the recipe's evaluation."""
    done = shell("get", "mine.yaml", "evaluate_model", name)
    assert done.returncode == 0, done.stderr
    worst: list[Any] = json.loads((shell.folder / name / "report.json").read_text())["worst"]
    assert worst
    return worst
