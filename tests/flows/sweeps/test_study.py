"""The study in a real database: what it proposes, what it repeats after a kill, what it refuses."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.postgres import Postgres, postgres  # noqa: F401 - a fixture
from trnflow.flows.recipes.sections import SweepConfig
from trnflow.flows.sweeps.plan import read_plan
from trnflow.flows.sweeps.space import parse
from trnflow.flows.sweeps.study import SweepStudy, database_errors, open_study
from trnflow.tasks.errors import ConfigError, MissingDependency, StoreError
from trnflow.tasks.store import Store

DEFINITION = {"recipe": {"name": "tiny"}, "metric": "eval_loss"}


def opened(folder: Path, definition: dict[str, Any] = DEFINITION, **settings: Any) -> SweepStudy:
    space = parse({"train.learning_rate": "1e-5..1e-1:log", "train.lora.rank": [4, 8]}, lambda name, value: None)
    if settings.get("sampler") == "grid":
        space = parse({"train.max_steps": "1..3", "train.lora.rank": [4, 8]}, lambda name, value: None)
    return open_study("tiny", SweepConfig(**settings), space, definition, f"sqlite:///{folder / 'optuna.db'}")


def loss(settings: dict[str, Any]) -> float:
    return abs(settings["train.learning_rate"] - 1e-3) + settings["train.lora.rank"] / 1e4


def run(study: SweepStudy, most: int = 100) -> int:
    """Complete at most so many trials; return how many there were."""
    for count in range(most):
        trial = study.next()
        if trial is None:
            return count
        study.complete(trial, loss(trial.params))
    return most


def test_a_study_that_was_killed_proposes_what_it_would_have_proposed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    whole = opened(tmp_path / "one", trials=9)
    assert run(whole) == 9
    for finished in (2, 5):
        run(opened(tmp_path / "two", trials=9), finished)
        cut = opened(tmp_path / "two", trials=9)
        assert cut.next() is not None  # it runs when the process dies
        assert len(opened(tmp_path / "two", trials=9).queue_again()) == 1
    again = opened(tmp_path / "two", trials=9)
    assert run(again) == 2
    done = [trial.settings for trial in again.trials() if trial.state == "completed"]
    assert done == [trial.settings for trial in whole.trials()]
    assert [trial.state for trial in again.trials()].count("killed") == 2
    assert again.best() is not None
    assert again.best().settings == whole.best().settings
    assert opened(tmp_path / "two", trials=9).queue_again() == []


def test_a_connection_that_was_lost_meanwhile_is_renewed(tmp_path: Path) -> None:
    study = opened(tmp_path)
    kept = study.study._storage._backend.engine.pool.connect()
    lost = kept.driver_connection
    kept.close()
    lost.close()
    assert run(study, 1) == 1


def test_a_grid_tries_every_combination_once(tmp_path: Path) -> None:
    study = opened(tmp_path, sampler="grid")
    for _ in range(3):
        study.complete(study.next(), 1.0)
    assert study.next() is not None
    study = opened(tmp_path, sampler="grid")
    study.queue_again()
    while (trial := study.next()) is not None:
        study.complete(trial, 0.5)
    tried = [tuple(one.settings.values()) for one in study.trials() if one.state == "completed"]
    assert len(tried) == len(set(tried)) == 6


def test_a_grid_after_random_trials_tries_what_they_left_out(tmp_path: Path) -> None:
    study = opened(tmp_path, sampler="grid")
    space, database = study._space, f"sqlite:///{tmp_path / 'optuna.db'}"
    random = open_study("tiny", SweepConfig(sampler="random", trials=8), space, DEFINITION, database)
    while (trial := random.next()) is not None:
        random.complete(trial, 1.0)
    grid = opened(tmp_path, sampler="grid")
    combinations = {tuple(one.settings.values()) for one in grid.trials()}
    assert len(combinations) < 6 and grid.has_trials_left  # 8 trials, but not all 6 combinations
    while (trial := grid.next()) is not None:
        grid.complete(trial, 0.5)
    assert len({tuple(one.settings.values()) for one in grid.trials()}) == 6
    assert len(grid.trials()) == 8 + 6 - len(combinations) and not grid.has_trials_left


def test_trials_worse_than_the_median_are_ended(tmp_path: Path) -> None:
    study = opened(tmp_path, trials=9, sampler="random")
    for value in (1.0, 1.1, 1.2, 1.3, 1.4):
        trial = study.next()
        assert not study.report(trial, value, 10)
        study.complete(trial, value)
    assert study.report(study.next(), 9.0, 10)
    assert not study.report(study.next(), 0.5, 10)
    assert not opened(tmp_path, trials=9, pruner="none").report(study.next(), 9.0, 10)


def test_if_all_trials_failed_the_same_command_repeats_them(tmp_path: Path) -> None:
    study = opened(tmp_path, trials=4)
    failed = [study.next() for _ in range(3)]
    for trial in failed:
        study.fail(trial, "no memory")
    assert opened(tmp_path, trials=4).queue_again() == [0, 1, 2]
    assert opened(tmp_path, trials=4).queue_again() == []


def test_a_trial_that_was_killed_three_times_is_left_out(tmp_path: Path) -> None:
    settings = []
    for _ in range(3):
        study = opened(tmp_path, trials=2)
        settings.append(study.next().params)  # it runs when the process dies
        queued = opened(tmp_path, trials=2).queue_again()
    assert settings[0] == settings[1] == settings[2]
    assert queued == []
    study = opened(tmp_path, trials=2)
    assert study.queue_again() == []  # as for trials that failed, if no trial has a result
    assert study.next().params != settings[0]
    assert [(trial.state, trial.error) for trial in study.trials()] == [
        ("killed", None), ("killed", None), ("failed", "killed 3 times"), ("running", None),
    ]  # fmt: skip


def test_a_trial_that_was_interrupted_is_repeated_each_time(tmp_path: Path) -> None:
    for number in range(4):
        study = opened(tmp_path, trials=2)
        study.note_stopped(study.next())
        assert opened(tmp_path, trials=2).queue_again() == [number]


def test_a_study_of_another_sweep_is_refused_unless_it_has_no_result(tmp_path: Path) -> None:
    other = {"recipe": {"name": "another"}, "metric": "eval_loss"}
    study = opened(tmp_path, other)
    study.fail(study.next(), "no memory")
    run(opened(tmp_path), 1)
    with pytest.raises(ConfigError, match=r"another sweep: recipe.name was tiny and is another") as error:
        opened(tmp_path, other)
    assert "--name" in error.value.fix


def test_the_id_of_a_store_tells_homes_and_buckets_apart(tmp_path: Path) -> None:
    plan = read_plan("demo", ["train.learning_rate=1e-5..1e-4", "sweep.database=sqlite:///shared.db"])
    roots = [("/data/store", "one"), ("/data/store", "two"), ("s3://bucket/a", "one"), ("s3://bucket/b", "one")]
    ids = [plan.store_id(Store(root, tmp_path / home)) for root, home in roots]
    assert len(set(ids)) == 4
    assert plan.store_id(Store("s3://bucket/a", tmp_path / "two")) == ids[2]
    assert plan.store_id(Store("/data/store", tmp_path / "one")) == ids[0]
    alone = read_plan("demo", ["train.learning_rate=1e-5..1e-4"])
    assert alone.store_id(Store("/data/store", tmp_path / "one")) == ""


def test_a_database_that_can_not_be_used_is_one_clear_error(tmp_path: Path) -> None:
    study = opened(tmp_path)
    run(study, 1)
    with sqlite3.connect(tmp_path / "optuna.db") as database:
        database.execute("drop table trials")
    with pytest.raises(StoreError, match=r"optuna.db, can't be used: .*no such table") as error:
        study.next()
    assert "\n" not in str(error.value)
    (tmp_path / "older").mkdir()
    opened(tmp_path / "older")
    with sqlite3.connect(tmp_path / "older/optuna.db") as database:
        database.execute("update alembic_version set version_num = 'v2.6.0.a'")
    with pytest.raises(StoreError, match="can't be used: .*no longer compatible"):
        opened(tmp_path / "older")
    (tmp_path / "optuna.db").write_text("no database" * 100)
    with pytest.raises(StoreError, match="can't be used"):
        opened(tmp_path)


@pytest.mark.slow
def test_a_postgresql_that_goes_away_is_named_with_its_drivers_reason(postgres: Postgres) -> None:  # noqa: F811
    """Optuna's storage asks again after some errors, in the same transaction, which then fails for that alone."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import OperationalError
    from sqlalchemy.orm import Session

    postgres.create("optuna")
    address = postgres.url("optuna")
    with pytest.raises(StoreError) as error, database_errors(address), Session(create_engine(address)) as session:
        session.execute(text("select 1"))
        postgres.kill()
        try:
            session.execute(text("select 1"))
        except OperationalError:
            session.execute(text("select 1"))
    assert error.value.message.endswith("/optuna, can't be used: server closed the connection unexpectedly")


def test_a_driver_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)  # as if it could not be imported
    with pytest.raises(MissingDependency, match=r"postgresql://\*\*\*@host/x is not installed") as error:
        open_study("tiny", SweepConfig(), [], {}, "postgresql://me:pw@host/x")
    assert error.value.fix == "pip install 'trnflow[postgres]'"
