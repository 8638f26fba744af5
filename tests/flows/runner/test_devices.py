"""Trainings that name the same devices wait for one another, in real processes; and the names that they take."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.flows.champions.conftest import RECIPE, write_rows
from tests.flows.runner.toy import WordsConfig, graph
from tests.helpers.command_line import InProcessShell
from tests.helpers.event_logs import runs_with_metrics
from tests.helpers.runs import context, plan_graph, run_graph
from tests.helpers.stores import new_store
from tests.launch.processes import marked
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.devices import VISIBLE, device_key, device_names, devices_of
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.promotion.score_rows import ScoreConfig, score_rows
from trnflow.tasks.stage import stage_of
from trnflow.tasks.store.lease import newest_holder
from trnflow.tasks.system import process

POOL = "launch.device_names=[pool]"
ENDLESS = ("train.max_steps=100000",)
EVALUATING = ("evaluate_model", "score_rows")


def names(*overrides: str, **environment: str) -> tuple[str, ...]:
    """The devices of the shipped recipe `demo` with these settings."""
    return device_names(settings.load("demo", ["train.engine=native", "train.devices=1", *overrides]), environment)


def test_which_devices_a_training_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    assert names("train.device=cpu") == ()
    assert names("train.device=cuda", "train.devices=2") == ("cuda 0", "cuda 1")
    monkeypatch.setenv(VISIBLE, "5,4,3")
    assert names("train.device=cuda", "train.devices=2") == ("cuda 4", "cuda 5")
    assert names("train.device=cuda", "train.devices=2", **{VISIBLE: "1, 2"}) == ("cuda 1", "cuda 2")
    assert names("train.device=cpu", "launch.device_names=[b, a, b]") == ("a", "b")
    assert names("train.device=cuda", "launch.device_names=[]") == ()


def test_which_stages_take_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "2,3")
    both = ("cuda 2", "cuda 3")

    def found(*overrides: str) -> dict[str, tuple[str, ...]]:
        recipe = settings.load("demo", ["train.engine=native", "train.devices=2", *overrides])
        scoring = ScoreConfig(window=8, device=recipe.evaluate.on_device_of(recipe.training.device).device)
        stages = [(node.stage, node.config) for node in finetune(recipe).nodes] + [(stage_of(score_rows), scoring)]
        return {stage.name: names for stage, config in stages if (names := devices_of(stage, config, recipe, {}))}

    assert found("train.device=cpu", "train.micro_batch=auto") == {}
    assert found("train.device=cpu", "evaluate.device=cuda") == dict.fromkeys(EVALUATING, ("cuda 2",))
    assert found("train.device=cuda", "evaluate.device=cpu") == {"train": both}
    every = found("train.device=cuda", "train.micro_batch=auto")
    assert every == {"train": both, "precompile": both} | dict.fromkeys(EVALUATING, ("cuda 2",))
    named = found("train.device=cuda", "train.micro_batch=auto", POOL)
    assert named == dict.fromkeys(("train", "precompile", *EVALUATING), ("pool",))


def test_containers_of_a_machine_share_what_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers have host names of their own, and the boot id of their machine; machines may have one host name."""
    numbered, named = ("cuda 0", "neuron"), ("pool", "cuda GPU-5f0e")

    def keys() -> dict[str, str]:
        return {name: device_key(name) for name in (*numbered, *named)}

    here = keys()
    monkeypatch.setattr(socket, "gethostname", lambda: "another-container")
    container = keys()
    assert [name for name in here if here[name] == container[name]] == [*named]
    monkeypatch.setattr(process, "_boot", lambda: "another-boot")
    assert not {*keys().values()} & {*container.values()}
    monkeypatch.setattr(process, "_boot", lambda: "")  # no /proc
    assert len({*keys().values()} - {*container.values()}) == 4


def test_a_run_that_waits_for_a_key_leaves_its_devices_to_others(tmp_path: Path) -> None:
    """It takes them once it has the key's turn."""
    (tmp_path / "words.txt").write_text("a bb")
    store = new_store(tmp_path)
    config = WordsConfig(path=str(tmp_path / "words.txt"))
    key = plan_graph(graph(config), store).steps["words"].key
    assert key is not None
    other = store.waiter(key, run="other", attempt="other", ttl=1000.0).acquire()
    assert other is not None
    seen: list[tuple[str, bool]] = []

    class Looks(Reader):
        def read(self, event: Event, state: RunState) -> None:
            if event["event"] == "waits":
                seen.append(("waits", is_held()))
                other.release()  # the other run ends without a result
            elif event["event"] == "stage_begun":
                seen.append((event["stage"], is_held()))

    def is_held() -> bool:
        return newest_holder(store.backend, device_key("pool")) is not None

    ran = run_graph(graph(config), context(store, Looks(), devices={"words": ("pool",)}))
    assert seen[:2] == [("waits", False), ("words", True)] and not is_held()
    assert ran.actions["words"] == "ran"


class Trainings:
    """Two recipes in a folder, of which commands are run beside one another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("tiny", "other"):
            (folder / f"{name}.yaml").write_text(RECIPE)
        write_rows(folder / "rows", {"pos": "pos", "neg": "neg"})
        self.shell = InProcessShell(folder)

    def begin(self, command: str, recipe: str, *arguments: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "trnflow", command, f"{recipe}.yaml", *arguments]
        with (self.folder / f"{recipe}.log").open("w") as log:
            environ = self.shell.environ | {"TEST_MARK": str(self.folder)}
            return subprocess.Popen(line, cwd=self.folder, env=environ, stderr=log, stdout=log, text=True)

    def begin_run(self, recipe: str, *overrides: str) -> subprocess.Popen[str]:
        return self.begin("run", recipe, "--direct", "--until", "train", *overrides)

    def said(self, recipe: str) -> str:
        return (self.folder / f"{recipe}.log").read_text()

    def await_training(self, process: subprocess.Popen[str]) -> None:
        while not runs_with_metrics(self.folder / ".trnflow"):
            assert process.poll() is None, self.said("tiny")
            time.sleep(0.05)

    def await_waiting(self, recipe: str, process: subprocess.Popen[str]) -> None:
        while "waits for the devices (pool): " not in self.said(recipe):
            assert process.poll() is None, self.said(recipe)
            time.sleep(0.05)


@pytest.fixture
def trainings(tmp_path: Path) -> Trainings:
    return Trainings(tmp_path)


@pytest.mark.slow
def test_a_training_waits_for_that_of_another_recipe_until_it_is_killed(trainings: Trainings) -> None:
    first = trainings.begin_run("tiny", *ENDLESS, "launch.grace_seconds=1", POOL)
    trainings.await_training(first)
    done = trainings.shell("run", "other.yaml", "--direct", "--until", "train", "train.max_steps=2")  # no pool
    assert done.returncode == 0
    second = trainings.begin_run("other", "train.max_steps=3", POOL)
    trainings.await_waiting("other", second)
    assert first.poll() is None and " of tiny, since " in trainings.said("other")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert second.wait() == 0
    leases = (trainings.folder / ".trnflow/store/leases").rglob("*.json")
    assert not [one for one in leases if "other" in one.read_text()]


@pytest.mark.slow
def test_the_scoring_of_a_model_on_a_gpu_waits_for_a_training(trainings: Trainings) -> None:
    """Of its stages only the scoring waits; this machine needs no GPU for that."""
    made = trainings.shell("run", "other.yaml", "--direct", "--until", "consolidate", "train.max_steps=2")
    assert made.returncode == 0, made.stderr
    first = trainings.begin_run("tiny", *ENDLESS, POOL)
    try:
        trainings.await_training(first)
        second = trainings.begin("promote", "other", "evaluate.device=cuda", "train.max_steps=2", POOL)
        trainings.await_waiting("other", second)
        os.kill(second.pid, signal.SIGINT)
        assert second.wait() == 130
    finally:
        os.kill(first.pid, signal.SIGINT)
        first.wait()


@pytest.mark.slow
def test_a_training_waits_for_the_trial_of_a_sweep_that_was_killed(trainings: Trainings) -> None:
    """The trial saves its state meanwhile; here it is stopped, so that it takes its time."""
    vary = "train.learning_rate=1e-5..1e-2:log"
    sweep = trainings.begin("sweep", "tiny", vary, "--trials", "1", *ENDLESS, "launch.grace_seconds=900", POOL)
    trial: list[int] = []
    try:
        trainings.await_training(sweep)
        trial += training_processes(trainings.folder)
        assert trial
        for one in trial:
            os.kill(one, signal.SIGSTOP)
        os.kill(sweep.pid, signal.SIGKILL)
        sweep.wait()
        second = trainings.begin_run("other", "train.max_steps=3", POOL)
        trainings.await_waiting("other", second)
        assert " of tiny, a sweep, since " in trainings.said("other")
    finally:
        for one in (sweep.pid, *trial):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
    assert second.wait() == 0, trainings.said("other")


def training_processes(folder: Path) -> list[int]:
    trains = re.compile(rb"TRNFLOW_ATTEMPT=[^\0]+-train-")
    return [pid for pid in marked(f"TEST_MARK={folder}") if trains.search(Path(f"/proc/{pid}/environ").read_bytes())]
