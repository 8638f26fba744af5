"""What the clients of trackers get of a run, by stand-ins for their packages: `tests/clients` has the packages themselves."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.runs import end, speak
from tests.tracking.test_tensorboard import log_of
from trnflow.tasks.events import EventLog
from trnflow.tasks.tracking.client_runs import ClientRuns

STAND_IN = """
import json, os
from pathlib import Path

def note(*call):
    with Path(__file__).with_suffix(".calls").open("a") as calls:
        calls.write(json.dumps(call) + "\\n")

class Settings:
    def __init__(self, **given):
        self.given = given

class Run:
    summary = property(lambda self: self)

    def log(self, values, **at):
        note("log", values, at)

    def update(self, values):
        note("summary", values)

    def define_metric(self, *names, **given):
        pass

    def finish(self, **given):
        note("finish", given)

def init(config, **given):
    note("init", config, os.environ.get("WANDB_MODE"))
    return Run()
"""


def calls_of(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> dict[str, list[Any]]:
    """{method of the stand-in: arguments of each call} of a run with 5 steps of training and a stage that was a hit."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / f"{package}.py").write_text(textwrap.dedent(STAND_IN))
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    try:
        with log_of(folder, "r1", log := EventLog(ClientRuns(folder, package))):
            end(log, "pack_chunks", "f" * 64, "f", action="hit", metrics={"chunks": 3})
            speak(log, folder, points=5)
            if fails:
                raise ValueError
    except ValueError:
        pass
    calls: dict[str, list[Any]] = {}
    for line in (packages / f"{package}.calls").read_text().splitlines():
        name, *arguments = json.loads(line)
        calls.setdefault(name, []).append(arguments)
    return calls


@pytest.mark.parametrize(("package", "mode"), [("wandb", "online"), ("wandb", None), ("trackio", None)])
def test_a_client_gets_curves_figures_and_the_end_and_no_secret(
    package: str, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    calls = calls_of(package, tmp_path, monkeypatch, fails=mode is not None)
    ((config, said),) = calls["init"]
    assert said == (mode or "offline")
    assert config["train"]["learning_rate"] == 3e-5 and "hf_token" not in config["model"]
    assert not any(secret in json.dumps(calls) for secret in ("hunter2", "sesame"))
    points = [(values, at) for values, at in calls["log"] if "train/loss" in values]
    assert [values["train/loss"] for values, _ in points] == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    steps = [at["step"] if package == "trackio" else values["train/step"] for values, at in points]
    assert steps == [0, 1, 2, 3, 4]
    reached = (
        calls["summary"] if package == "wandb" else [[values] for values, at in calls["log"] if at["step"] in (0, 4)]
    )
    figures = {name: value for (values,) in reached for name, value in values.items()}
    assert figures["train/train_loss"] == 0.25 and figures["evaluate_model/f1_weighted"] == 0.92
    assert not any(name.startswith("pack_chunks/") for name in figures), "a hit reached nothing in this run"
    if package == "trackio":
        assert [at["step"] for values, at in calls["log"] if "train/train_loss" in values] == [4]
    else:
        assert calls["finish"] == [[{"exit_code": int(mode is not None)}]]
