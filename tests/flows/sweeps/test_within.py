"""`trnflow sweep --within`, from outside, without Optuna: killed, out of time, to its end, and again."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell

pytestmark = pytest.mark.slow

FIXED = ("train.max_steps=12", "export.target=none")
NO_OPTUNA = "import sys\nsys.modules['optuna'] = None\n"
"""As sitecustomize.py: a process in which Optuna can't be imported."""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcessShell:
    """The command line in a folder with the recipe `tiny.yaml`, where Optuna can't be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    return InProcessShell(write_tiny(tmp_path))


def trainings(folder: Path) -> int:
    """The number of trainings that were begun in the folder's store."""
    attempts = (folder / ".trnflow/store/attempts").glob("*/*.json")
    return sum(json.loads(file.read_text())["stage"] == "train" for file in attempts)


def test_a_ladder_is_killed_runs_out_of_time_and_goes_on(shell: InProcessShell) -> None:
    folder = shell.folder
    (folder / "without").mkdir()
    (folder / "without/sitecustomize.py").write_text(NO_OPTUNA)
    path = shell.environ.get("PYTHONPATH", "")
    shell.environ["PYTHONPATH"] = f"{folder / 'without'}{os.pathsep}{path}"
    process = shell.start("sweep", "tiny.yaml", "--within", "10m", *FIXED, stderr=subprocess.PIPE)
    results = folder / ".trnflow/sweeps/tiny"
    deadline = time.monotonic() + 300
    while not (results / "best.yaml").exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shell.environ["PYTHONPATH"] = path

    done = shell("sweep", "tiny.yaml", "--within", "1s", *FIXED)
    assert done.returncode == 0, done.stderr
    first = json.loads((results / "sweep.json").read_text())
    tried = len(first["trials"])
    assert f"tried {tried} of 4 settings in " in done.stderr
    assert "; the next takes about " in done.stderr
    assert 1 <= tried < 4
    assert first["winner"]["test"].keys() >= {"accuracy", "f1_macro"}

    found = shell.json("sweep", "tiny.yaml", "--within", "10m", *FIXED)
    assert found["schema"] == 1
    assert [trial["state"] for trial in found["trials"]] == ["completed"] * 4
    assert [trial["value"] for trial in found["trials"]][:tried] == [trial["value"] for trial in first["trials"]]
    rates = [trial["settings"]["train.learning_rate"] for trial in found["trials"]]
    assert rates == [0.01, 0.0033, 0.03, 0.01]
    assert (found["metric"], found["direction"]) == ("eval_accuracy", "max")
    assert found["best"] == max(found["trials"], key=lambda trial: trial["value"])  # of equals the first
    before = trainings(folder)
    again = shell("sweep", "tiny.yaml", "--within", "10m", *FIXED)
    assert "tried all 4 settings in " in again.stderr
    two = 2 * math.sqrt(found["best"]["value"] * (1 - found["best"]["value"]) / 40)
    line = f"validation has 40 rows: a difference in eval_accuracy below two standard errors ({two:.2g}) tells little"
    assert line in again.stderr
    assert trainings(folder) == before
    assert json.loads((results / "sweep.json").read_text())["winner"]["metrics"] == found["winner"]["metrics"]
    run = shell.json("run", str(results / "best.yaml"), "--direct")
    assert {stage["action"] for stage in run["stages"]} <= {"hit", "skip"}
    assert not (folder / ".trnflow/optuna.db").exists()
    assert "trial 0" in (results / "sweep.html").read_text().lower()


def test_trials_are_compared_by_the_recipes_best_metric(shell: InProcessShell) -> None:
    """Also by one that training measures only to keep the best weights."""
    found = shell.json(
        "sweep", "tiny.yaml", "--within", "1s", *FIXED, "train.best_metric=f1_macro", "train.learning_rate=1e-2"
    )
    assert (found["metric"], found["direction"], len(found["trials"])) == ("eval_f1_macro", "max", 1)
    assert found["best"]["settings"] == {"train.keep_best": True}


def test_without_validation_rows_nothing_is_trained(shell: InProcessShell) -> None:
    (shell.folder / "rows/validation.jsonl").unlink()
    error = shell.error("sweep", "tiny.yaml", "--within", "10m", *FIXED, code=2)
    assert "compares trials on the validation split, which has no rows" in error
    assert "data.split.validation=0.1" in error
    assert trainings(shell.folder) == 0
    assert not (shell.folder / ".trnflow/sweeps").exists()
