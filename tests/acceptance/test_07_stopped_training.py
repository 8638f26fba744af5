"""7. Training that is stopped or killed, between or during the writes of a checkpoint: no process stays, the same key goes on to
the very bits of a run that was left alone, another one starts from zero and says why, and MLflow shows one training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.ending import check_ending
from tests.flows.runner.forks import Forks, OnceConfig, apart, until
from tests.helpers.runs import plan_graph
from tests.helpers.waiting import wait_for
from tests.launch.processes import marked
from trnflow.flows.runner.graph import Graph, Node
from trnflow.tasks.events import unsent_runs
from trnflow.tasks.store import Store

STEPS = 1000
DEMO = (
    "demo", "--json", "data.limit=64", "train.engine=native", "train.devices=1", "train.global_batch=8",
    f"train.max_steps={STEPS}", "train.epochs=1000", "train.eval_every_epoch=false", "train.threads=1",
    "train.checkpoint_every=10", "model.config.num_hidden_layers=1", "model.config.hidden_size=32",
    "model.config.intermediate_size=32",
)  # fmt: skip
RUN = ("run", "--until", "train", "--direct", *DEMO)
UNTRACKED = "tracking.enabled=false"
CHECKPOINT, PARTIAL = (
    "trnflow.tasks.training.checkpoint.shards:write_shards",
    "trnflow.tasks.store.partial:PartialState",
)
BACKEND = "trnflow.tasks.store.local:LocalBackend"
SHORT = "train.max_steps=60"

KILLER = """
import functools, importlib.util, os, signal, sys

module, function, when, left = os.environ["KILL_AT"].split(":")
left = int(left)

def dying(original):
    @functools.wraps(original)
    def mortal(*arguments, **named):
        global left
        left -= 1
        if left == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return mortal

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def loaded(made):
            load(made)
            *owners, last = function.split(".")
            owner = functools.reduce(getattr, owners, made)
            setattr(owner, last, dying(getattr(owner, last)))
        spec.loader.exec_module = loaded
        return spec

sys.meta_path.insert(0, Finder())
"""
"""As sitecustomize.py of a training's process: it kills itself before or after the nth call of a function."""


def start(folder: Path, *more: str, command: tuple[str, ...] = RUN) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TRNFLOW", "PREFECT"))}
    return subprocess.Popen(
        [sys.executable, "-m", "trnflow", *command, *more],
        cwd=folder,
        env=environ | {"TRNFLOW_HOME": str(folder / "home"), "TEST_MARK": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def killed_at(folder: Path, point: str, *more: str) -> str:
    """stderr of a run whose training kills itself at a point of its code, `module:function:before or after:nth call`."""
    (folder / "killer").mkdir(exist_ok=True)
    (folder / "killer/sitecustomize.py").write_text(KILLER)
    process = start(folder, f"launch.environment={{PYTHONPATH: {folder / 'killer'}, KILL_AT: '{point}'}}", *more)
    out, err = process.communicate()
    assert process.returncode == 1, err
    assert "signal SIGKILL" in json.loads(out)["error"]["message"]
    assert "Traceback" not in err
    return err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finished(tmp_path_factory.mktemp("undisturbed"), UNTRACKED)[0]


@pytest.fixture(scope="module")
def undisturbed_60(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finished(tmp_path_factory.mktemp("undisturbed"), UNTRACKED, SHORT)[0]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.nightly),
        (signal.SIGKILL, -9),
    ],
)
def test_a_stopped_run_leaves_no_process_and_resumes_to_the_same_bits(
    tmp_path: Path, undisturbed: str, number: signal.Signals, code: int
) -> None:
    process = start(tmp_path, UNTRACKED)
    partial = tmp_path / "home/store/partial"
    wait_for(lambda: list(partial.rglob("COMMIT")) or process.poll() is not None)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    wait_for(lambda: not marked(f"TEST_MARK={tmp_path}\0"), 40)
    assert "Traceback" not in err
    if code == 130:
        assert json.loads(out)["error"]["type"] == "Interrupted"
    steps = [int(mark.parent.name.removeprefix("step-")) for mark in partial.rglob("COMMIT")]
    assert 0 < max(steps) < STEPS

    artifact, said = finished(tmp_path, UNTRACKED)
    assert f"resumes at step {max(steps)}" in said
    assert artifact == undisturbed
    assert not list(partial.rglob("COMMIT"))
    assert not list((tmp_path / "home/work").iterdir())
    check_end(tmp_path)


def check_end(folder: Path, *more: str) -> None:
    def again() -> dict[str, str]:
        process = start(folder, UNTRACKED, *more)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return {stage["stage"]: stage["action"] for stage in json.loads(out)["stages"]}

    check_ending(Store(str(folder / "home/store"), folder / "home"), again)


def finished(folder: Path, *more: str) -> tuple[str, str]:
    """(the checkpoint's digest, stderr) of a run that is left alone."""
    process = start(folder, *more)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return str(json.loads(out)["stages"][-1]["artifact"]), err


def committed(folder: Path) -> list[int]:
    marks = (folder / "home/store/partial").rglob("COMMIT")
    return sorted(int(mark.parent.name.removeprefix("step-")) for mark in marks)


@pytest.mark.nightly
def test_a_kill_while_a_checkpoint_is_written_is_one_training_in_mlflow(tmp_path: Path, undisturbed_60: str) -> None:
    """Its files are in place, and what says that they are whole is not."""
    killed_at(tmp_path, f"{PARTIAL}._move_in:after:4", SHORT)
    assert committed(tmp_path) == [20, 30]  # of 40 there is no COMMIT; older ones than two are pruned

    other = "train.learning_rate=2e-3"
    process = start(tmp_path, other, SHORT, command=("explain", *DEMO[:1], "train", *DEMO[1:]))
    out, err = process.communicate()
    assert process.returncode == 0, err
    differs = "starts from zero: the unfinished one differs in params.learning_rate: 0.003 -> 0.002"
    assert differs in out
    said = killed_at(tmp_path, f"{CHECKPOINT}:before:1", other, SHORT, UNTRACKED)
    assert differs in said
    assert "resumes" not in said

    artifact, said = finished(tmp_path, SHORT)
    assert "resumes at step 30" in said
    assert artifact == undisturbed_60
    check_one_training(tmp_path / "home", 60)
    check_end(tmp_path, SHORT)


def check_one_training(home: Path, steps: int) -> None:
    """Two pipeline runs, and one nested run with the whole curve, the last one's."""
    from mlflow import MlflowClient

    mlflow = MlflowClient(f"sqlite:///{home}/mlflow.db")
    wait_for(lambda: not unsent_runs(home))
    runs = mlflow.search_runs([mlflow.get_experiment_by_name("trnflow").experiment_id])
    (train,) = (run for run in runs if run.data.tags["trnflow.stage"] == "train")
    first, second = sorted(
        (run for run in runs if not run.data.tags["trnflow.stage"]), key=lambda run: run.info.start_time
    )
    assert (first.info.status, second.info.status, train.info.status) == ("FAILED", "FINISHED", "FINISHED")
    assert train.data.tags["mlflow.parentRunId"] == second.info.run_id
    names = [run.data.tags["trnflow.run"] for run in (first, second)]
    assert train.data.tags["trnflow.runs"].split() == names
    assert first.data.tags["trnflow.continued_by.train"] == names[1]
    assert second.data.tags["trnflow.continues.train"] == names[0]
    points = mlflow.get_metric_history(train.info.run_id, "loss")
    assert {point.step for point in points} == set(range(5, steps + 1, 5))
    assert len({(point.step, point.value) for point in points}) == steps // 5  # what was done twice came out the same


def test_what_a_killed_stage_left_is_gone_on_from_by_its_own_key_alone(local: Forks) -> None:
    """The quick sibling, on a stage that saves as training does."""

    def why(number: int) -> str:
        node = Node(apart, OnceConfig(journal=str(local.journal), number=number), {})
        return plan_graph(Graph((node,)), local.store()).steps["apart"].why

    assert why(0) == "never ran in this store"
    first = local.start("first", stage="apart")
    until(local.journal.exists)
    os.kill(first, signal.SIGKILL)
    until(lambda: "saved" in local.journal.read_text())
    assert why(0) == "never ran in this store; goes on from step 7"
    differs = "starts from zero: the unfinished one differs in params.number: 0 -> 1"
    assert why(1) == f"never ran in this store; {differs}"

    other = local.start("other", stage="apart", number=1)
    until(lambda: local.journal.read_text().endswith("begins at step 0\n"))
    assert differs in local.said("other")
    os.kill(other, signal.SIGKILL)
    local.start("second", stage="apart")
    assert local.result("second")["outcomes"]["apart"] == ["ran", ""]
    assert "begins at step 7" in local.journal.read_text()
    assert why(0).startswith("made ")

    def again() -> dict[str, str]:
        local.start("third", stage="apart")
        return {name: action for name, (action, _) in local.result("third")["outcomes"].items()}

    check_ending(local.store(), again)


POINTS = [
    f"{CHECKPOINT}:before:2", f"{CHECKPOINT}:after:2", f"{PARTIAL}.commit:before:2", f"{PARTIAL}._move_in:before:2",
    f"{PARTIAL}._move_in:after:2", f"{BACKEND}.replace:before:2", f"{PARTIAL}.commit:after:2", f"{PARTIAL}.prune:before:2",
    f"{BACKEND}.remove:after:1", f"{BACKEND}.remove:after:2", f"{PARTIAL}.prune:after:2",
]  # fmt: skip


@pytest.mark.nightly
def test_kills_at_each_point_of_writing_one_after_the_other(tmp_path: Path, undisturbed: str) -> None:
    """Each run goes on from what the one before had finished writing."""
    reached = 0
    for point in POINTS:
        said = killed_at(tmp_path, point, UNTRACKED)
        steps = committed(tmp_path)
        assert max(steps) > reached, point
        assert not reached or f"resumes at step {reached}" in said
        reached = max(steps)
    artifact, said = finished(tmp_path, UNTRACKED)
    assert f"resumes at step {reached}" in said
    assert artifact == undisturbed
    check_end(tmp_path)
