"""Sweeps from outside: killed, without their database, with errors in every trial, several trials at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell, Shell
from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.keys.key_document import key_of

pytestmark = pytest.mark.slow

FEW_STEPS = ("train.max_steps=12", "train.eval_every=2")
SWEEP = ("sweep", "tiny.yaml", "train.learning_rate=1e-6..1e-1:log", *FEW_STEPS, "--trials", "12")
PATIENCE = 900.0


def begun(shell: Shell, ended: int) -> subprocess.Popen[str]:
    """A sweep as a process of its own, in which at least `ended` trials have ended and the next one trains."""
    process = shell.start(*SWEEP, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    work = shell.folder / ".trnflow/work"
    while len(good(document(shell.folder))) < ended or not [*work.glob("*-train-*")]:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def document(folder: Path, name: str = "tiny") -> Any:
    file = folder / f".trnflow/sweeps/{name}/sweep.json"
    return json.loads(file.read_text()) if file.exists() else {"trials": []}


def good(found: Any) -> list[Any]:
    return [trial for trial in found["trials"] if trial["state"] in ("completed", "pruned")]


def test_a_sweep_survives_two_kills_and_the_loss_of_its_database(tmp_path: Path) -> None:
    shell = InProcessShell(write_tiny(tmp_path))
    for ended in (2, 5):
        process = begun(shell, ended)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = begun(shell, 8)
    (tmp_path / ".trnflow/optuna.db").unlink()
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("error: the database of the sweep")]
    before = document(tmp_path)
    assert len(good(before)) >= 8
    assert "killed" in {trial["state"] for trial in before["trials"]}

    found = shell.json(*SWEEP)
    assert found == document(tmp_path)
    assert (found["schema"], found["study"], found["metric"], found["direction"]) == (1, "tiny", "eval_loss", "min")
    done = good(found)
    assert len(done) == 12
    assert len({trial["settings"]["train.learning_rate"] for trial in done}) == 12
    # the five random trials are proposed again, and found in the store
    completed = {str(trial["settings"]): trial["value"] for trial in done if trial["state"] == "completed"}
    assert {str(trial["settings"]): trial["value"] for trial in good(before)[:5]}.items() <= completed.items()
    assert found["shared_seconds"] > 0
    best = min((trial for trial in done if trial["value"] is not None), key=lambda trial: trial["value"])
    assert found["best"] == best
    assert any(trial["state"] == "pruned" for trial in done)
    pruned = {trial["run"] for trial in done if trial["state"] == "pruned"}
    attempts = [json.loads(file.read_text()) for file in (tmp_path / ".trnflow/store/attempts").glob("*/*.json")]
    keys = {key_of(one["document"]) for one in attempts if one["run"] in pruned and one["stage"] == "train"}
    assert keys
    assert not [key for key in keys if (tmp_path / ".trnflow/store/partial" / key).exists()]

    page = (tmp_path / ".trnflow/sweeps/tiny/sweep.html").read_text()
    assert "default-src 'none'" in page
    assert (
        page.count("<img") == page.count('src="data:image/png;base64,') == 3
    )  # history, importances, parallel coordinates
    assert "<script" not in page
    assert page.count("<tr") > 12

    recipe = settings.load(str(tmp_path / ".trnflow/sweeps/tiny/best.yaml"))
    assert recipe.train.learning_rate == best["settings"]["train.learning_rate"]
    assert (recipe.name, recipe.train.max_steps) == ("tiny", 12)
    again = shell.json("run", ".trnflow/sweeps/tiny/best.yaml", "--direct")
    assert {stage["action"] for stage in again["stages"]} <= {"hit", "skip"}
    assert found["winner"]["metrics"]["accuracy"] == again["stages"][-1]["metrics"]["accuracy"]
    # nothing is left to do, and the test split is not looked at again
    assert shell.json(*SWEEP)["winner"] == found["winner"]


def test_errors_in_the_middle_are_one_clear_line(tiny: InProcessShell) -> None:
    """A metric that nobody reports; then, in the same study, which has no result, trials that all fail."""
    error = tiny.error("sweep", "tiny.yaml", "train.learning_rate=1e-3,1e-2", "--metric", "eval_bleu", code=2)
    assert "no metric eval_bleu: it reports eval_accuracy" in error
    error = tiny.error(
        "sweep", "tiny.yaml", "train.learning_rate=1e25,1e26,1e27", "train.max_steps=4", "--sampler", "grid", code=1
    )
    assert "all 3 trials failed; the first (trial 0, train.learning_rate=1e+25)" in error
    assert "lower train.learning_rate" in error
    assert all(trial["state"] == "failed" for trial in document(tiny.folder)["trials"])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_two_trials_at_a_time(tiny: InProcessShell) -> None:
    """They share data stages: each is made once."""
    found = tiny.json(
        "sweep", "tiny.yaml", "train.learning_rate=1e-3..1e-2", *FEW_STEPS, "--trials", "4", "--parallel", "2",
        "--name", "two", "--sampler", "random",
    )  # fmt: skip
    assert [trial["state"] for trial in found["trials"]] == ["completed"] * 4
    assert found["best"]["value"] == min(trial["value"] for trial in found["trials"])
    assert len(list((tiny.folder / ".trnflow/store/records/load_data").iterdir())) == 1
