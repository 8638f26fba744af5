"""The settings that `sweep --within` tries."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.stores import new_store
from trnflow.flows.recipes.recipe import load
from trnflow.flows.runner.run import Result
from trnflow.flows.sweeps.ladder import EPOCHS, KEEP_BEST, MAX_STEPS, RATE, ladder
from trnflow.flows.sweeps.plan import read_plan
from trnflow.flows.sweeps.timed_study import TimedStudy, TimedTrial

RECIPES = {name: load(name) for name in ("bert-emotion", "instruct", "llama2-7b-dolly-lora", "embedding", "regression")}


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(RECIPES)),
    rate=st.floats(1e-9, 1e3),
    epochs=st.integers(1, 40),
    max_steps=st.none() | st.integers(1, 2000),
    keep_best=st.booleans(),
    fixed=st.sets(st.sampled_from([RATE, EPOCHS, MAX_STEPS, KEEP_BEST])),
)
def test_a_ladder_begins_with_the_recipe_and_repeats_nothing(
    name: str, rate: float, epochs: int, max_steps: int | None, keep_best: bool, fixed: set[str]
) -> None:
    own = {RATE: rate, EPOCHS: epochs, MAX_STEPS: max_steps, KEEP_BEST: keep_best}
    recipe = RECIPES[name].changed(own)
    trained = [recipe.changed(rung).train for rung in ladder(recipe, fixed)]  # each is valid
    assert trained[0] == recipe.train
    assert all(one not in trained[:number] for number, one in enumerate(trained))
    for setting, value in own.items():
        if setting in fixed:
            assert {getattr(one, setting.removeprefix("train.")) for one in trained} == {value}


def test_a_ladder_in_numbers() -> None:
    def rungs(name: str, **fixed: Any) -> list[tuple[Any, ...]]:
        recipe = RECIPES[name].changed({RATE: 3e-4, EPOCHS: 5, MAX_STEPS: None})
        return [tuple(rung.values()) for rung in ladder(recipe, **fixed)]

    both = [(3e-4, 5), (1e-4, 5), (9e-4, 5), (3e-4, 10), (3e-4, 3), (1e-4, 10), (9e-4, 3), (9e-4, 10)]
    assert rungs("llama2-7b-dolly-lora") == both
    assert rungs("bert-emotion") == [*both, (3e-4, 5, True)]
    assert rungs("bert-emotion", fixed={RATE, KEEP_BEST}) == [(5,), (10,), (3,)]
    assert rungs("bert-emotion", fixed={MAX_STEPS}) == [(3e-4,), (1e-4,), (9e-4,), (3e-4, True)]


def test_trials_are_compared_by_what_the_recipe_sets_else_by_accuracy() -> None:
    def metric(name: str, *overrides: str) -> tuple[str, bool]:
        sweep = read_plan(name, ["sweep.within=1m", *overrides]).recipe.sweep
        return sweep.metric, sweep.is_maximised

    assert metric("bert-emotion") == ("eval_accuracy", True)
    assert metric("bert-emotion", "train.best_metric=eval_loss") == ("eval_loss", False)
    assert metric("bert-emotion", "train.best_metric=f1_macro") == ("eval_f1_macro", True)
    assert metric("bert-emotion", "sweep.metric=eval_loss") == ("eval_loss", False)
    assert metric("regression") == metric("instruct") == ("eval_loss", False)
    recipe = read_plan("bert-emotion", ["sweep.within=1m"]).recipe
    assert ladder(recipe)[-1]["train.best_metric"] == "eval_accuracy"


@pytest.mark.parametrize("search", ["sweep.within=1m", RATE + "=1e-5..1e-4"])
def test_a_metric_of_the_user_s_own_is_good_as_the_recipe_says(tmp_path: Path, search: str) -> None:
    (tmp_path / "mine.py").write_text("def gain(p):\n    return 1.0\n")
    recipe = tmp_path / "mine.yaml"
    for less_is_better in (True, False):
        own = f"{{function: 'mine:gain', less_is_better: {str(less_is_better).lower()}}}"
        recipe.write_text(
            f"extends: demo\nevaluate: {{metrics: [{own}]}}\ntrain: {{best_metric: 'mine:gain', keep_best: true}}\n"
        )
        plan = read_plan(str(recipe), [search, "sweep.metric=eval_gain"])
        assert plan.recipe.sweep.is_maximised is not less_is_better
        assert plan.definition()["direction"] == ("min" if less_is_better else "max")
        asked = read_plan(str(recipe), [search, "sweep.metric=eval_gain", "sweep.direction=min"])
        assert not asked.recipe.sweep.is_maximised


def test_a_metric_that_is_measured_only_to_keep_the_best_weights_keeps_them_in_each_trial() -> None:
    recipe = load("bert-emotion", ["train.best_metric=f1_macro", "sweep.metric=eval_f1_macro", "train.keep_best=false"])
    assert all(rung[KEEP_BEST] for rung in ladder(recipe))
    assert not any(KEEP_BEST in rung for rung in ladder(recipe, {KEEP_BEST}))


def test_a_trial_begins_only_if_it_and_what_follows_the_winners_training_end_in_time(tmp_path: Path) -> None:
    plan = read_plan("bert-emotion", ["sweep.within=10m"])
    study = TimedStudy(plan, new_store(tmp_path), lambda *given: Result("none"), print, offline=True)
    assert study._has_time_for(590) and not study._has_time_for(610)
    study.complete(TimedTrial(0, {}, time.monotonic(), 10.0, once=200.0), 0.5)
    assert study._has_time_for(490) and not study._has_time_for(510), "as long as half a training, where nothing tells"


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (
            "eval_accuracy",
            "validation has 400 rows: a difference in eval_accuracy below two standard errors (0.03) tells little",
        ),
        ("eval_loss", "validation has 400 rows: a difference in eval_loss below two standard errors tells little"),
    ],
)
def test_what_differs_by_chance_is_said_at_the_end(tmp_path: Path, metric: str, said: str) -> None:
    """Of 400 rows, 360 of which are right, the share has a standard error of sqrt(0.9 * 0.1 / 400) = 0.015."""
    lines: list[str] = []
    plan = read_plan("bert-emotion", ["sweep.within=10m", f"sweep.metric={metric}", "sweep.direction=max"])
    study = TimedStudy(plan, new_store(tmp_path), lambda *given: Result("none"), lines.append, offline=True)
    study._rows = 400
    for number, value in enumerate((0.5, 0.9, 0.7)):
        study._trials.append(TimedTrial(number, {}, time.monotonic(), 10.0, once=2.0))
        study.complete(study._trials[-1], value)
    study._say_end("tried all 3 settings")
    assert lines[0].startswith("tried all 3 settings in ") and lines[1:] == [said]
