"""`accept --all` after an edit of every stage: all results stand, and a killed training goes on, to the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_07_stopped_training import (
    CHECKPOINT,
    DEMO,
    SHORT,
    UNTRACKED,
    committed,
    finished,
    killed_at,
    start,
)
from tests.helpers.checkouts import copy_program
from tests.helpers.command_line import Shell
from trnflow.flows.finetune import STAGES


def edited(folder: Path) -> str:
    """A copy of the program in which each stage's module has another code, and so each stage another key."""
    copy_program(folder)
    for stage in STAGES:
        with (folder / f"tasks/{stage}.py").open("a") as file:
            file.write("\n\nREFACTORED = True\n")
    return str(folder)


def test_accept_all_takes_what_there_is(own_past: Shell, tmp_path: Path) -> None:
    shell = Shell(own_past.folder)
    made = shell.json("plan", "mine.yaml")["stages"]
    shell.environ["PYTHONPATH"] = edited(tmp_path / "code")
    assert [stage["action"] for stage in shell.json("plan", "mine.yaml")["stages"][:2]] == ["run", "maybe"]
    results = shell.json("accept", "mine.yaml", "--all")["stages"]
    assert [result["stage"] for result in results] == [stage for stage in STAGES if stage != "compute_reference"]
    assert [result["accepted"] for result in results] == [True] * 4 + [False] * 5
    assert [result["artifact"] for result in results[:4]] == [stage["artifact"] for stage in made[:4]]
    assert "there is no past result" in results[5]["why"] and results[5]["partial"] is None
    assert "not known yet" in results[6]["why"]
    assert [stage["action"] for stage in shell.json("plan", "mine.yaml")["stages"][:4]] == ["hit"] * 4
    said = shell("accept", "mine.yaml", "--all").stdout
    assert "load_data is cached already" in said and "train: no past result of train can be accepted" in said
    other = shell.json("accept", "mine.yaml", "--all", "tokenize.max_length=32")["stages"]
    assert "params.max_length" in other[2]["why"] and "not known yet" in other[3]["why"]
    assert shell.json("verify")["ok"]
    for arguments in (("train", "--all"), ()):
        assert "accept takes a stage or --all" in shell.error("accept", "mine.yaml", *arguments, code=2)


@pytest.mark.slow
def test_a_killed_training_goes_on_after_its_code_was_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, home = tmp_path / "alone", tmp_path / "killed"
    alone.mkdir()
    home.mkdir()
    wanted, _ = finished(alone, UNTRACKED, SHORT)
    killed_at(home, f"{CHECKPOINT}:before:4", UNTRACKED, SHORT)
    (*_, last) = committed(home)
    monkeypatch.setenv("PYTHONPATH", edited(tmp_path / "code"))

    def accept(*more: str) -> Any:
        process = start(home, SHORT, *more, command=("accept", *DEMO, "--all"))
        out, err = process.communicate()
        assert process.returncode == 0, err
        return {result["stage"]: result for result in json.loads(out)["stages"]}

    assert accept("train.learning_rate=2e-3")["train"]["partial"] is None, "another setting is another training"
    results = accept()
    assert results["precompile"]["artifact"] and not results["train"]["accepted"]
    assert results["train"]["partial"] == last == accept()["train"]["partial"]
    artifact, said = finished(home, UNTRACKED, SHORT)
    assert f"resumes at step {last}" in said
    assert artifact == wanted
