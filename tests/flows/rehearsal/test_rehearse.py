"""A sound recipe is called sound, and nothing of its rehearsal is left, however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.rehearsal.faults import write_sound
from tests.helpers.command_line import InProcessShell, Shell
from tests.helpers.products import few
from tests.helpers.small_disk import small_disk
from tests.helpers.stores import new_store
from tests.helpers.waiting import wait_for
from trnflow.flows.recipes.recipe import load
from trnflow.flows.rehearsal.checks import check_disk
from trnflow.flows.rehearsal.rehearse import Killer, rehearse
from trnflow.flows.runner.context import open_context, open_store
from trnflow.tasks.errors import StoreError
from trnflow.tasks.events import RunState
from trnflow.tasks.system.process import processes_of
from trnflow.tasks.training.memory.estimate import Memory


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return InProcessShell(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(["classify", "chat", "instruct"], 2))
def test_a_sound_recipe(shell: Shell, tmp_path: Path, kind: str) -> None:
    write_sound(tmp_path, kind)
    done = shell("rehearse", "mine.yaml", *(["train.engine=xla"] if kind == "classify" else []), "--json")
    document = json.loads(done.stdout)
    # the planned kill is no failure, and the small model's answers say nothing of the recipe
    assert "failed" not in done.stderr and "train: killed on purpose" in done.stderr
    assert not any(f"  {stage}: " in done.stderr for stage in ("consolidate", "export_neuron", "evaluate_model"))
    assert document["fault"] is None and document["killed"]
    if kind != "chat":  # the vocabulary of a model from scratch with a tokenizer of its own is not known before
        assert "micro batch" in document["memory"]
    assert not list((tmp_path / ".trnflow/store").glob("records/*/*"))
    assert shell.json("runs")["runs"] == []
    assert not list((tmp_path / ".trnflow/work").glob("*rehearsal-*"))


@pytest.mark.slow
def test_training_waits_for_a_kill_that_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine; from its first state to its end training takes a tenth of a second."""
    write_sound(tmp_path, "classify")
    monkeypatch.chdir(tmp_path)

    def late(attempt: str) -> Iterator[int]:
        time.sleep(3)
        return processes_of(attempt)

    monkeypatch.setattr("trnflow.flows.rehearsal.rehearse.processes_of", late)
    rehearsal = rehearse(open_context("mine.yaml"))
    assert rehearsal.fault is None and rehearsal.killed and not rehearsal.remarks


def test_training_is_held_at_its_first_state_until_it_was_killed_or_has_ended(tmp_path: Path) -> None:
    store, key = new_store(tmp_path), "e" * 64
    killer, hold = Killer(store), tmp_path / "store/partial" / key / "HOLD"
    begun: Any = {"n": 0, "time": 0.0, "event": "stage_begun", "key": key, "attempt": "nobody", "settings": {}}
    killer.read(begun | {"stage": "load_data"}, RunState())
    assert not hold.exists()
    killer.read(begun | {"stage": "train"}, RunState())
    assert hold.exists(), "a training of a tenth of a second would end before it is seen"
    killer.read(begun | {"stage": "train", "event": "stage_ended"}, RunState())
    wait_for(lambda: not hold.exists())
    assert not killer.killed


@pytest.mark.slow
def test_killed(tmp_path: Path) -> None:
    """What a killed rehearsal leaves goes with the next command that runs stages."""
    shell = Shell(tmp_path)
    write_sound(tmp_path, "classify")
    process = shell.start("rehearse", "mine.yaml", stderr=subprocess.PIPE)
    assert process.stderr is not None
    while "tokenize_text" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    work = tmp_path / ".trnflow/work"
    assert [path for path in work.iterdir() if "rehearsal-" in path.name]
    deadline = time.monotonic() + 60  # the guards of its stages end first
    while list(work.iterdir()) and time.monotonic() < deadline:
        shell("run", "mine.yaml", "--until", "load_data", "--direct", "--force", "load_data", "tracking.enabled=false")
    assert not list(work.iterdir())


def test_a_fault_is_printed_with_place_and_fix(shell: Shell, tmp_path: Path) -> None:
    write_sound(tmp_path, "classify")
    message = shell.error("rehearse", "mine.yaml", "data.label=labl", code=2)
    assert "data.label" in message and "did you mean label?" in message
    document = json.loads(shell("rehearse", "mine.yaml", "data.label=labl", "--json").stdout.splitlines()[0])
    assert document["fault"]["type"] == "ConfigError" and not document["killed"]


def test_a_disk_too_small_for_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checkpoints of 12 bytes a parameter, the model and its export of 4: 64 MB of 2 million parameters."""
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    memory = Memory(8_000_000, 8_000_000, 16_000_000, 0, 0, "the update")
    for size, fits in ((60_000_000, False), (70_000_000, True)):
        with small_disk(tmp_path / f"disk{size}", size) as disk:
            recipe = load("demo", [f"store.root={disk}", "store.min_free_gb=0", "on=cpu"])
            if fits:
                check_disk(recipe, open_store(recipe), memory, 2_000_000)
                continue
            with pytest.raises(StoreError, match="checkpoints, model and export need about 64.0 MB") as refused:
                check_disk(recipe, open_store(recipe), memory, 2_000_000)
            assert refused.value.stage == "train" and "store.root" in refused.value.fix
