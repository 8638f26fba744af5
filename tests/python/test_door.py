"""Runs from Python: an interrupted one keeps its state, a killed one leaves no process, and importing costs little."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trnflow as tr
from tests.helpers.command_line import write_project
from tests.helpers.waiting import wait_for
from tests.launch.processes import marked
from trnflow.tasks.errors import ConfigError

BEGIN = """
import asyncio, json, sys, threading
import trnflow as tr
rows = [{"text": f"word {i} of {i % 7}", "label": "ab"[i % 2]} for i in range(64)]
recipe = tr.recipe({"name": "mine", "extends": "demo", "export": {"target": "none"}, "tracking": {"enabled": False}})
recipe = recipe.set(data=rows, on="cpu", data__label="label", data__split={"test": 0.2}, train__checkpoint_every=2)
recipe = recipe.set(train__max_steps=int(sys.argv[1]), train__log_every=1)
"""
PLAIN = (
    BEGIN
    + """
run = recipe.run()
print(run.stage('train').path.resolve())
model = run.model()
first, again = (model.predict(["word 1 of 1"]) for _ in range(2))
assert first.equals(again)
try:
    model.predict([{"text": None}])
except Exception as error:
    print(error)
"""
)
INTERRUPTED = (
    BEGIN
    + """
try:
    recipe.run()
except KeyboardInterrupt as error:
    print("interrupted:", error)
"""
)
CANCELLED = (
    BEGIN
    + """
async def main():
    task = asyncio.create_task(recipe.run_async())
    await asyncio.to_thread(sys.stdin.readline)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        print("interrupted: cancelled")
asyncio.run(main())
"""
)


def start(script: str, steps: int, home: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "TRNFLOW_HOME": str(home), "TEST_MARK": str(home)}
    return subprocess.Popen(
        [sys.executable, "-c", script, str(steps)], env=environ, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_state(home: Path, process: subprocess.Popen[str]) -> None:
    """Wait until training has saved a step."""
    wait_for(lambda: process.poll() is not None or [*home.glob("store/partial/*/step-*/COMMIT")], 240)
    assert process.poll() is None, process.communicate()[1]


def end(home: Path, process: subprocess.Popen[str]) -> None:
    """Wait until no process works in a home."""
    process.wait(60)
    wait_for(lambda: not marked(f"TEST_MARK={home}\0"), 30)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "killed"])
def test_a_stopped_run_keeps_its_state_and_leaves_no_process(how: str, tmp_path: Path) -> None:
    process = start({"cancelled": CANCELLED, "killed": PLAIN}[how], 4000, tmp_path / "home")
    wait_for_state(tmp_path / "home", process)
    if how == "cancelled":
        out, errors = process.communicate("stop\n", timeout=120)
        assert process.returncode == 0, errors
        assert out.startswith("interrupted: "), out
    else:
        process.kill()
        process.communicate(timeout=120)
    end(tmp_path / "home", process)
    saved = max(int(folder.name.partition("-")[2]) for folder in (tmp_path / "home").glob("store/partial/*/step-*"))
    assert 2 <= saved < 4000


@pytest.mark.slow
def test_a_notebook_resumes_to_the_same_bits(tmp_path: Path) -> None:
    process = start(INTERRUPTED, 60, tmp_path / "home")
    wait_for_state(tmp_path / "home", process)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and out.startswith("interrupted: "), errors
    end(tmp_path / "home", process)
    resumed, undisturbed = (start(PLAIN, 60, tmp_path / name) for name in ("home", "other"))
    (one, errors), (two, more) = (each.communicate(timeout=300) for each in (resumed, undisturbed))
    assert one and Path(one.splitlines()[0]).name == Path(two.splitlines()[0]).name, errors + more
    assert "row 1: the column text is missing or null" in one


def test_importing_is_light() -> None:
    script = """if True:
        import json, sys
        import trnflow as tr
        first = [name for name in sys.modules if "trnflow" in name]
        tr.recipe
        print(json.dumps([first, [name for name in ("torch", "prefect", "pandas", "mlflow") if name in sys.modules]]))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert json.loads(done.stdout) == [["trnflow"], []]
    assert all(getattr(tr, name) for name in tr.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tr.nothing


def test_a_recipe_is_read_set_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_project(tmp_path))
    mine = tr.recipe("mine.yaml")
    changed = mine.set(train__epochs=2).set(train={"learning_rate": 1e-5})
    assert (changed.settings["train"]["epochs"], changed.settings["train"]["learning_rate"]) == (2, 1e-5)
    assert mine.settings["train"]["learning_rate"] != 1e-5
    same: dict[str, Any] = {name: value for name, value in mine.settings.items() if name in ("data", "format", "model")}
    assert tr.recipe({"extends": "mine.yaml", "name": "mine"}).settings == mine.settings and same
    for wrong, says in (
        ({"train__learning_rat": 1}, "did you mean train.learning_rate"),
        ({"train__epochs": "many"}, "train.epochs"),
        ({"train": {}}, "the section train is empty"),
        ({"on": "p9.xlarge"}, "there is no hardware p9.xlarge"),
    ):
        with pytest.raises(ConfigError) as caught:
            mine.set(**wrong)
        assert says in f"{caught.value.message} {caught.value.fix}"
    for source, says in (
        ("nowhere", "there is no recipe nowhere"),
        ({"name": "x", "extends": 7}, "extends names no recipe"),
    ):
        with pytest.raises(ConfigError, match=says):
            tr.recipe(source)  # type: ignore[arg-type]
