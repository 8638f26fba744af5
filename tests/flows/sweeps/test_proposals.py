"""What a study proposes, counts and prunes, with Optuna's trials in memory; `test_study.py` has databases."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.flows.sweeps.test_study import loss
from trnflow.flows.recipes.sections import SweepConfig
from trnflow.flows.sweeps.space import parse
from trnflow.flows.sweeps.study import SweepStudy, _opened, best_of, open_study
from trnflow.tasks.errors import ConfigError

SPACE = parse({"train.learning_rate": "1e-5..1e-1:log", "train.lora.rank": [4, 8]}, lambda name, value: None)


def in_memory(**settings: Any) -> SweepStudy:
    from optuna.storages import InMemoryStorage

    config = SweepConfig(**settings)
    return SweepStudy(_opened(InMemoryStorage(), "tiny", config), config, SPACE, "memory", is_new=True)


def begun(study: SweepStudy) -> Any:
    """The next trial, which there is."""
    trial = study.next()
    assert trial is not None
    return trial


def proposed(study: SweepStudy, count: int) -> list[dict[str, Any]]:
    """The settings of the next trials, each of which completes before the one behind it begins."""
    found = []
    for _ in range(count):
        trial = begun(study)
        found.append(dict(trial.params))
        study.complete(trial, loss(trial.params))
    return found


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_seed_of_a_sweep_decides_its_trials(sampler: str) -> None:
    first, second = (proposed(in_memory(sampler=sampler, seed=3), 7) for _ in range(2))
    assert first == second and all(one != next_one for one, next_one in pairwise(first))
    assert proposed(in_memory(sampler=sampler, seed=4), 7) != first


def test_trials_at_a_time_are_told_of_each_other() -> None:
    def second(parallel: int) -> dict[str, Any]:
        study = in_memory(parallel=parallel, trials=20)
        proposed(study, 8)
        begun(study)
        return dict(begun(study).params)

    assert second(2) != second(1)


def test_a_trial_is_pruned_only_once_five_have_ended() -> None:
    study = in_memory(sampler="random")
    for ended in range(7):
        trial = study.next()
        assert study.report(trial, 1.0 + ended, 10) == (ended >= 5)  # each is worse than all before it
        study.complete(trial, 1.0)


def test_a_trial_that_was_killed_counts_as_little_as_none() -> None:
    study = in_memory(trials=3)
    proposed(study, 1)
    study.next()  # the process dies
    assert study.queue_again() == [1] and study.has_trials_left
    proposed(study, 1)
    assert [trial.state for trial in study.trials()] == ["completed", "killed", "completed"]
    assert study.has_trials_left, "two of three"
    proposed(study, 1)
    assert not study.has_trials_left and study.next() is None


def test_failed_trials_are_repeated_unless_one_ended_well() -> None:
    study = in_memory(trials=3)
    study.fail(study.next(), "no memory")
    proposed(study, 1)
    assert study.queue_again() == []


@pytest.mark.parametrize(("direction", "best"), [("min", 1), ("max", 0)])
def test_of_equal_trials_the_first_is_best(direction: Literal["min", "max"], best: int) -> None:
    study = in_memory(direction=direction)
    for value in (0.7, 0.2, 0.2, 0.7):
        study.complete(study.next(), value)
    found = best_of(study.trials(), SweepConfig(direction=direction))
    assert found is not None and found.number == best


def test_a_study_of_another_store_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    def shared(store: str, recipe: str = "tiny") -> SweepStudy:
        space = parse({"train.learning_rate": "1e-5..1e-1:log"}, lambda name, value: None)
        address = f"sqlite:///{tmp_path / 'optuna.db'}"
        return open_study("tiny", SweepConfig(), space, {"recipe": {"name": recipe}}, address, store)

    study = shared("mine")
    assert study.next() is not None  # without a result, a study of another recipe would be deleted
    for recipe in ("tiny", "another"):
        with pytest.raises(ConfigError, match="belongs to a sweep of another store") as error:
            shared("theirs", recipe)
        assert "--name" in error.value.fix
    assert [trial.state for trial in shared("mine").trials()] == ["running"]
