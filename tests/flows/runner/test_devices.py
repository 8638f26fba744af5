"""Trainings that name the same devices wait for one another, in real processes; and the names that they take."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.recipes import recipe as settings
from flows.runner.devices import VISIBLE, device_key, device_names, devices_of_stages
from tasks.system import process
from tests.flows.champions.conftest import RECIPE, write_rows
from tests.helpers.command_line import Shell

POOL = "launch.device_names=[pool]"


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
        return {stage: names for stage, names in devices_of_stages(recipe, {}).items() if names}

    assert found("train.device=cpu", "train.micro_batch=auto") == {}
    assert found("train.device=cpu", "evaluate.device=cuda") == {"evaluate_model": ("cuda 2",)}
    assert found("train.device=cuda", "evaluate.device=cpu") == {"train": both}
    every = found("train.device=cuda", "train.micro_batch=auto")
    assert every == {"train": both, "precompile": both, "evaluate_model": ("cuda 2",)}
    named = found("train.device=cuda", "train.micro_batch=auto", POOL)
    assert named == dict.fromkeys(("train", "precompile", "evaluate_model"), ("pool",))


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


@pytest.mark.slow
def test_a_training_waits_for_that_of_another_recipe_until_it_is_killed(tmp_path: Path) -> None:
    for name in ("tiny", "other"):
        (tmp_path / f"{name}.yaml").write_text(RECIPE)
    write_rows(tmp_path / "rows", {"pos": "pos", "neg": "neg"})
    shell = Shell(tmp_path)

    def begin(recipe: str, *overrides: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flows", "run", f"{recipe}.yaml", "--direct", "--until", "train", *overrides]
        with (tmp_path / f"{recipe}.log").open("w") as log:
            return subprocess.Popen(command, cwd=tmp_path, env=shell.environ, stderr=log, stdout=log, text=True)

    first = begin("tiny", "train.max_steps=100000", "launch.grace_seconds=1", POOL)
    partial = tmp_path / ".trnflow/logs"
    while not list(partial.glob("*-train-*.jsonl")):
        assert first.poll() is None
        time.sleep(0.05)
    assert shell("run", "other.yaml", "--direct", "--until", "train", "train.max_steps=2").returncode == 0  # no pool
    second = begin("other", "train.max_steps=3", POOL)
    while "waits for the devices (pool): " not in (tmp_path / "other.log").read_text():
        assert second.poll() is None
        time.sleep(0.05)
    assert first.poll() is None and " of tiny, since " in (tmp_path / "other.log").read_text()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert second.wait() == 0
    assert not [one for one in (tmp_path / ".trnflow/store/leases").rglob("*.json") if "other" in one.read_text()]
