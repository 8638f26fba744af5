"""What `trnflow sweep` refuses before it runs a trial: one line that says what, where and how to mend it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell
from tests.helpers.leases import write_dead_lease
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import open_store
from trnflow.flows.sweeps import pool
from trnflow.flows.sweeps.pool import Leases
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import lease

RATE = "train.learning_rate=1e-5..1e-2:log"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.learnin_rate=1e-5..1e-4"], "did you mean"),
        (["train.learning_rate=1e-4..1e-5"], "is empty"),
        (["train.learning_rate=-1..1"], "train.learning_rate"),
        (["train.learning_rate=fast,slow"], "train.learning_rate"),
        (["train.global_batch=8..16.5"], "takes whole numbers"),
        (["evaluate.batch=1,2"], "no influence on training"),
        ([], "varies nothing"),
        ([RATE, "--trials", "0"], "sweep.trials"),
        ([RATE, "--sampler", "gird"], "sweep.sampler"),
        ([RATE, "--sampler", "grid"], "range without steps"),
        ([RATE, "--parallel", "4000"], "trials at a time"),
        (["--within", "soon"], "soon is no time, which is a number above 0 with s, m or h, such as 30m"),
        (["--within", "30"], "such as 30m"),
        (["--within", "0m"], "above 0"),
        ([RATE, "--within", "1m"], "train.learning_rate is given too"),
        (["--within", "1m", "--trials", "3"], "sweep.trials=3 is given too"),
        (["--within", "1m", "--parallel", "2"], "sweep.parallel=2 is given too"),
        ([RATE, "--name", "../there"], "can't be named"),
        ([RATE, "sweep.database=nosuchdb://x/y"], "can't be used"),
        ([RATE, "sweep.database=oracle+cx_oracle://me:p{w@host/x"], "install its driver"),
        ([RATE, "sweep.database=postgresql://me:pw@host:port/x"], "its URL is malformed"),
    ],
)
def test_bad_sweeps_are_refused(tiny: InProcessShell, arguments: list[str], said: str) -> None:
    code = 1 if "database" in "".join(arguments) else 2
    error = tiny.error("sweep", "tiny.yaml", *arguments, code=code)
    assert said in error
    assert error.count("error: ") == 1
    assert len(error.split("error: ")[1].splitlines()) == 2  # the error and its fix
    assert not (tiny.folder / ".trnflow/sweeps").exists()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            "settings: {train.learnin_rate: 1e-5..1e-4}",
            "sweep.settings of with.yaml: train.learnin_rate is not a setting",
        ),
        ("settings: {train.learning_rate: 1e-4..1e-5}", "is empty"),
        ("settings: {train.learning_rate: [fast]}", "sweep.settings of with.yaml: train.learning_rate can't be 'fast'"),
        ("settings: {train.learning_rate: 5}", "sweep.settings.train.learning_rate can't be 5"),
        ("settings: {train.learning_rate: []}", "a choice of train.learning_rate is empty"),
        ("settings: {train: [a, b]}", "it takes settings below it"),
        ("settings: [a]", "sweep.settings can't be a list"),
        ("settings: {}", "varies nothing"),
        ("setting: {}", "did you mean sweep.settings?"),
        ("trials: many", "sweep.trials"),
    ],
)
def test_bad_sections_of_a_recipe_are_refused(tiny: InProcessShell, section: str, said: str) -> None:
    text = (tiny.folder / "tiny.yaml").read_text()
    (tiny.folder / "with.yaml").write_text(f"{text}\nsweep: {{{section}}}\n")
    error = tiny.error("sweep", "with.yaml", code=2)
    assert said in error
    assert error.count("error: ") == 1
    assert len(error.split("error: ")[1].splitlines()) == 2
    assert not (tiny.folder / ".trnflow/sweeps").exists()


def test_two_sweeps_share_neither_study_nor_devices(tiny: InProcessShell) -> None:
    with contextlib.chdir(tiny.folder):
        recipe = settings.load("tiny.yaml")
        store = open_store(recipe)
        store.prepare()
        one, two = (Leases(recipe, store, name, print) for name in ("one", "two"))
        with one.hold_study(), one.hold_devices():
            with pytest.raises(ConfigError, match="another sweep has the study one"), one.hold_study():
                pass
            with (
                pytest.raises(ConfigError, match="another sweep or training has the cpu devices"),
                two.hold_study(),
                two.hold_devices(),
            ):
                pass
        with two.hold_study(), two.hold_devices():
            pass


def test_a_sweep_that_waits_names_the_holder_and_takes_its_turn(tiny: InProcessShell) -> None:
    with contextlib.chdir(tiny.folder):
        recipe = settings.load("tiny.yaml")
        store = open_store(recipe)
        store.prepare()
        said: list[str] = []
        with contextlib.ExitStack() as other:

            def say(line: str) -> None:
                said.append(line)
                other.close()  # the other sweep ends

            waiting = Leases(recipe, store, "three", say, wait=True)
            for hold in (waiting.hold_study, waiting.hold_devices):
                other.enter_context(hold())
                with hold():
                    assert len(said) == 1
                assert f"pid {os.getpid()} (run " in said[0]
                assert " of tiny, a sweep, since " in said.pop()


def test_the_lease_of_a_killed_sweep_of_another_machine_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_tiny(tmp_path))
    monkeypatch.setattr(lease, "WATCH_SECONDS", 0.1)
    recipe = settings.load("tiny.yaml")
    store = open_store(recipe)
    store.prepare()
    write_dead_lease(store, digest_of({"sweep": "the study one"}).removeprefix("sha256:"), "run", "run")
    said: list[str] = []
    with Leases(recipe, store, "one", said.append).hold_study():
        assert ["another-machine pid 7" in line for line in said] == [True]


def test_trials_at_a_time_use_the_gpus_that_the_recipe_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_tiny(tmp_path))
    monkeypatch.setattr(pool, "_count", lambda device: 8)
    monkeypatch.setenv(pool.VISIBLE, "0,1,2,3")
    named = f"launch.environment={{{pool.VISIBLE}: '6,7'}}"
    recipe = settings.load("tiny.yaml", ["train.device=cuda", "sweep.parallel=2", named])
    pool.check_fit(recipe)
    assert [pool.on_slot(recipe, slot).launch.environment[pool.VISIBLE] for slot in (0, 1)] == ["6", "7"]
    with pytest.raises(ConfigError, match="this machine has 2"):
        pool.check_fit(settings.load("tiny.yaml", ["train.device=cuda", "sweep.parallel=3", named]))
    pairs = ["train.device=cuda", "train.devices=2", named.replace("6,7", "4,5,6,7,9")]
    recipe = settings.load("tiny.yaml", [*pairs, "sweep.parallel=2"])
    pool.check_fit(recipe)
    assert [pool.on_slot(recipe, slot).launch.environment[pool.VISIBLE] for slot in (0, 1)] == ["4,5", "6,7"]
    with pytest.raises(ConfigError, match="need 6 GPUs, and this machine has 5"):
        pool.check_fit(settings.load("tiny.yaml", [*pairs, "sweep.parallel=3"]))
    unnamed = settings.load("tiny.yaml", ["train.device=cuda", "sweep.parallel=2"])
    assert pool.on_slot(unnamed, 1).launch.environment[pool.VISIBLE] == "1"


def test_a_deployed_sweep_reads_what_all_trials_have_in_common() -> None:
    from trnflow.flows.deployments import sweep

    with pytest.raises(ConfigError, match=r"train\.unknown is not a setting"):
        sweep.fn("demo", vary=["train.not_there_either=1,2"], overrides=["train.unknown=1"])
