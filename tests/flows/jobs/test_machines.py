"""Keys of another machine are those that a job told, and no guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell
from tests.helpers.stores import new_store
from trnflow.flows.jobs.machines import Machines, machine_of
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.tasks.store import Store

HERE: Any = {
    "schema": 2, "stage": "train", "code": {"a": "1"}, "inputs": {"model": "m"},
    "params": {"dtype": "float32", "learning_rate": 0.1}, "env": {"torch": "2.9", "new": "1"},
    "accel": {"device": "cpu", "threads": 2},
}  # fmt: skip
THERE: Any = {
    **HERE, "params": {"dtype": "bfloat16", "learning_rate": 0.1}, "env": {"torch": "2.15"},
    "accel": {"device": "cuda", "threads": 1},
}  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load(str(write_tiny(tmp_path) / "tiny.yaml"), ["launch.kind=slurm"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "home")


@pytest.fixture
def machines(recipe: Recipe, store: Store) -> Machines:
    machines = Machines(recipe, store)
    assert machines.document("train", HERE) is None
    machines.learn("train", THERE)
    return Machines(recipe, store)


def test_what_a_job_told_is_known(machines: Machines) -> None:
    assert machines.document("train", HERE) == THERE
    faster = {**HERE, "params": {**HERE["params"], "learning_rate": 0.2}, "inputs": {"model": "n"}, "code": {"a": "2"}}
    known = machines.document("train", faster)
    assert known == {
        **faster,
        "params": {"dtype": "bfloat16", "learning_rate": 0.2},
        "env": THERE["env"],
        "accel": THERE["accel"],
    }
    assert machines.document("consolidate", HERE) is None


@pytest.mark.parametrize(
    "change",
    [
        {"env": {"torch": "2.10", "new": "1"}},
        {"env": {"torch": "2.9"}},
        {"accel": {"device": "cpu", "threads": 4}},
        {"params": {"dtype": "float16", "learning_rate": 0.1}},
        {"params": {"learning_rate": 0.1}},
    ],
)  # fmt: skip
def test_what_is_other_here_than_it_was_then_is_not_known(change: Any, machines: Machines) -> None:
    assert machines.document("train", {**HERE, **change}) is None


def test_a_result_of_other_inputs_or_code_teaches_nothing(recipe: Recipe, store: Store) -> None:
    for change in ({"inputs": {"model": "other"}}, {"code": {"a": "2"}}):
        machines = Machines(recipe, store)
        machines.document("train", HERE)
        machines.learn("train", {**THERE, **change})
        assert machines.document("train", HERE) is None


def test_each_platform_interpreter_option_and_fixed_setting_has_machines_of_its_own(tmp_path: Path) -> None:
    file = str(write_tiny(tmp_path) / "tiny.yaml")
    changes = ["launch.python=/a/python", "launch.options.partition=gpu", "train.threads=2", "launch.max_hours=3"]
    names = [machine_of(load(file, ["launch.kind=slurm", change])) for change in changes]
    plain = machine_of(load(file, ["launch.kind=slurm"]))
    assert len({*names[:3], plain}) == 4 and names[3] == plain


EMPTY = '{"train": {"here": {}, "there": {}}}'


@pytest.mark.parametrize("forged", ["[]", '{"train": ["1"]}', EMPTY, "\x00", '{"train": {"foo": {"a": [1, 2]}}}'])
def test_a_damaged_file_is_as_none(forged: str, recipe: Recipe, store: Store) -> None:
    store.backend.replace(f"machines/{machine_of(recipe)}.json", forged.encode())
    machines = Machines(recipe, store)
    assert machines.document("train", HERE) is None
    machines.learn("train", THERE)
    assert (
        json.loads(store.backend.read(f"machines/{machine_of(recipe)}.json"))["train"]["there"]["accel"]
        == THERE["accel"]
    )


@pytest.mark.slow
def test_a_result_of_this_machine_is_planned_as_maybe(tmp_path: Path) -> None:
    shell = InProcessShell(write_tiny(tmp_path))
    shell.json("run", "tiny.yaml", "--direct", "--until", "train")
    planned = shell.json("plan", "tiny.yaml", "launch.kind=slurm")["stages"]
    actions = {stage["stage"]: stage["action"] for stage in planned}
    assert actions["pack_chunks"] == "hit" and actions["precompile"] == actions["train"] == "maybe"
