"""What a job takes along and what it does with its order, before a stage runs; `test_job.py` runs them."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trnflow.flows.jobs import elsewhere as running
from trnflow.flows.jobs import work as working
from trnflow.flows.jobs.carry import _model, _settings
from trnflow.flows.jobs.elsewhere import Elsewhere
from trnflow.flows.jobs.order import JobUri
from trnflow.flows.jobs.submitted import write_submission
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.recipes.sections import LaunchConfig
from trnflow.flows.runner.run import Result
from trnflow.tasks.artifact import Source
from trnflow.tasks.errors import ConfigError, MachineError
from trnflow.tasks.platforms.protocol import SECRET
from trnflow.tasks.store import Store

COMMIT = "c" * 40


def test_a_model_of_the_hub_is_the_commit_that_was_found_here(tmp_path: Path) -> None:
    recipe = load("demo", ["model={source: org/words, revision: main}"])
    settings: dict[str, Any] = {"model": recipe.model.model_dump(mode="json")}
    found = Source("model", {}, {"model": {"repo": "org/words", "commit": COMMIT}, "tokenizer": None})
    _model(recipe, settings, cast(Any, SimpleNamespace(ask_once=lambda find, config: found)), tmp_path)
    assert (settings["model"]["source"], settings["model"]["revision"]) == ("org/words", COMMIT)


def test_a_job_reads_no_rows_sources_services_or_places_of_this_machine() -> None:
    here = [
        "store={root: s3://bucket/mine, min_free_gb: 7}", "launch.grace_seconds=9", "sweep.trials=3", "promote.margin=0.1",
        "tracking.uri=http://mlflow", "data.revision=v1",
    ]  # fmt: skip
    found = _settings(load("demo", here))
    assert not found.keys() & {"sweep", "promote", "checks", "run", "task_runner"}
    assert (found["tracking"], found["launch"]["grace_seconds"]) == ({"enabled": False}, 9.0)
    assert (found["store"]["root"], found["store"]["min_free_gb"]) == (None, 7.0)
    rows = found["data"]
    assert (rows["source"], rows["revision"], rows["splits"], rows["make"]) == ("given", None, {}, None)
    mix = "{a: {source: a.csv, weight: 2}, b: {source: b.csv, weight: 1}}"
    rows = _settings(load("demo", [f"data={{source: null, name: null, mix: {mix}}}"]))["data"]
    assert rows["source"] is None
    assert [(one["source"], one["weight"]) for one in rows["mix"].values()] == [("given", 2.0), ("given", 1.0)]


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [
        ("DEBUG", "1", False), ("HF_TOKEN", "abc", True), ("HF_TOKEN", "${HF_TOKEN}", False), ("MY_PASSWORD", "abc", True),
    ],
)  # fmt: skip
def test_a_variable_that_is_named_like_a_secret_does_not_travel_by_its_value(
    name: str, value: str, is_refused: bool
) -> None:
    recipe = load("demo", [f"launch.environment={{{name}: '{value}'}}"])
    if is_refused:
        with pytest.raises(ConfigError, match=f"launch.environment.{name} may be a secret") as error:
            _settings(recipe)
        assert value not in error.value.message
    else:
        assert _settings(recipe)["launch"]["environment"] == {name: value}


def test_stages_are_forced_that_the_user_names_or_whose_results_were_lost(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    for name in ("train", "consolidate"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        made[name] = store.ingest(tmp_path / name, name, {})
    orders: list[Any] = []
    monkeypatch.setattr(running, "write_order", lambda *given: orders.append(given[3:]))
    monkeypatch.setattr(running, "machine_of", lambda recipe: "there")
    stages = ("train", "consolidate", "evaluate_model")
    elsewhere = Elsewhere(stages, cast(Recipe, SimpleNamespace(launch=LaunchConfig())))
    elsewhere._carried = cast(Any, "carried")
    elsewhere._job = cast(Any, SimpleNamespace(ended={name: {"artifact": made[name].digest} for name in made}))
    plan: Any = SimpleNamespace(
        graph=SimpleNamespace(stages=("load_data", "precompile", *stages), deferred=frozenset({"precompile"}))
    )

    def ordered(until: str | None, force: set[str], lost: set[str]) -> Any:
        context: Any = SimpleNamespace(store=store, force=frozenset(force), lost=lost)
        elsewhere._ordered(plan, context, cast(Any, SimpleNamespace(until=until)))
        return orders.pop()

    assert ordered(None, {"load_data"}, set()) == (["load_data"], "evaluate_model", set(), "there")
    assert ordered("consolidate", {"train"}, set()) == (["load_data"], "consolidate", {"train"}, "there")
    lost = {made["consolidate"].files[0].digest}
    assert ordered(None, {"evaluate_model"}, lost)[2] == {"evaluate_model", "consolidate"}


def test_a_stage_is_forced_in_one_run_of_a_submission(
    store: Store, uri: JobUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(**actions: str) -> Any:
        return {"stages": [{"stage": stage, "action": action} for stage, action in actions.items()]}

    runs = {"old": record(train="ran"), "first": record(train="hit", consolidate="ran"), "killed": None}
    monkeypatch.setattr(store, "run", runs.get)
    monkeypatch.setattr(working, "runs_of", lambda store, job: [*runs])
    assert working._forced(store, uri) == {"train", "consolidate"}
    write_submission(store, uri.id, "slurm", "7", ["old"])
    assert working._forced(store, uri) == {"consolidate"}


@pytest.fixture
def work(store: Store, uri: JobUri, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Work at an order whose stages take no time; returns the options that they had."""
    seen: list[Any] = []
    monkeypatch.setattr(working, "open_home", lambda: store.home)
    monkeypatch.setattr(working, "_take_code", lambda *_: None)
    monkeypatch.setattr(atexit, "register", lambda *_, **__: None)

    def run(graph: Any, context: Any, what: Any) -> Result:
        seen.append(what)
        return Result("r")

    monkeypatch.setattr(working, "run", run)

    def working_at(given: tuple[str, ...] = (), **fields: Any) -> Any:
        order = {
            "given": [{"stage": name} for name in given], "environment": [], "libraries": {}, "force": [], "until": "train",
            **fields,
        }  # fmt: skip
        recipe = SimpleNamespace(train=SimpleNamespace(device="cuda"))
        context: Any = SimpleNamespace(recipe=recipe, notes=[], run="r")
        context.for_run = lambda log: context
        monkeypatch.setattr(working, "read_order", lambda *_: order)
        monkeypatch.setattr(working, "_context", lambda *_: context)
        working.work(uri, lambda recipe: cast(Any, None))
        return seen.pop()

    return working_at


def test_a_machine_that_can_not_train_is_told_before_anything_runs(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "usable_gpus", lambda: SimpleNamespace(why="it has no driver"))
    with pytest.raises(MachineError, match="trains on a GPU, and this machine can't: it has no driver"):
        work(given=("load_data",), force=["train"])
    assert work(given=("load_data", "train"), until="consolidate").until == "consolidate", "it only exports"
    monkeypatch.setattr(working, "usable_gpus", lambda: SimpleNamespace(why=""))
    assert work(given=("load_data",), force=["train"]).force == {"train"}


def test_of_a_secret_a_job_takes_what_its_order_names(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "secret_values", lambda secret: {"FOR_THIS_JOB": "1", "FOR_ANOTHER": "2"})
    for name in ("FOR_THIS_JOB", "FOR_ANOTHER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv(SECRET, "arn")
    work(given=("train",), environment=["FOR_THIS_JOB"])
    assert os.environ["FOR_THIS_JOB"] == "1" and "FOR_ANOTHER" not in os.environ
    assert SECRET not in os.environ, "a stage must not read it"
    monkeypatch.setenv(SECRET, "arn")
    with pytest.raises(ConfigError, match="the variable NOWHERE is not set here") as error:
        work(given=("train",), environment=["NOWHERE"])
    assert error.value.fix == "put it into the secret arn"


def test_a_job_forces_what_none_of_its_runs_has_made(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "_forced", lambda *_: {"consolidate"})
    assert work(given=("load_data", "train"), force=["consolidate", "evaluate_model"]).force == {"evaluate_model"}
