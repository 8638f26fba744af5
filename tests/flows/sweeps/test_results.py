"""What a sweep writes and runs at its end, with trials that take no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.runs import step
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import open_store
from trnflow.flows.runner.run import Result
from trnflow.flows.sweeps import sweep as sweeps
from trnflow.flows.sweeps.files import document, write_best
from trnflow.flows.sweeps.page import sweep_page
from trnflow.flows.sweeps.plan import Plan, read_plan
from trnflow.flows.sweeps.pool import Leases
from trnflow.flows.sweeps.study import Tried, open_study
from trnflow.flows.sweeps.sweep import Sweep
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.system import redaction

RATE = "train.learning_rate=1e-5..1e-2:log"
BEST = Tried(0, {"train.learning_rate": 1e-3}, 0.5, "completed", None, None, 0.0)


def trained(recipe: Any, options: Any, run: str, *_: Any) -> Result:
    meta = {"metrics": {"eval_loss": recipe.train.learning_rate}}
    return Result(run, [step("train", "ran", artifact=Artifact("sha256:0", "model", meta, ()))])


def going(plan: Plan, run: Any = trained) -> Sweep:
    store = open_store(plan.recipe)
    store.prepare()
    study = open_study(plan.name, plan.recipe.sweep, plan.space, plan.definition(), plan.database(store.home))
    return Sweep(plan, store, study, run, print)


def test_best_yaml_of_a_recipe_that_is_complete_only_with_overrides(folder: Path) -> None:
    text = (folder / "tiny.yaml").read_text()
    (folder / "part.yaml").write_text(text.replace("source: rows, ", ""))
    with pytest.raises(ConfigError):
        settings.load("part.yaml")
    write_best(folder / "there", read_plan("part.yaml", ["data.source=rows", RATE]), BEST)
    recipe = settings.load(str(folder / "there/best.yaml"))
    assert (recipe.train.learning_rate, recipe.data.source) == (1e-3, str(folder / "rows"))
    assert recipe.to_json()["model"] == read_plan("tiny.yaml", [RATE]).recipe.to_json()["model"]


def test_best_yaml_does_not_fall_back_to_other_data_where_it_hides_a_secret(folder: Path) -> None:
    source = "https://me:${PW}@localhost:1/rows.csv"
    write_best(folder / "there", read_plan("tiny.yaml", [f"data.source={source}", RATE]), BEST)
    written = (folder / "there/best.yaml").read_text()
    assert "source: https://***:${PW}@localhost:1/rows.csv" in written
    assert "# *** hides a secret" in written


def test_what_shapes_a_trials_metric_belongs_to_its_study_and_nothing_else(folder: Path) -> None:
    def of(*texts: str) -> Any:
        return read_plan("tiny.yaml", [RATE, *texts]).definition()

    same = ("tracking.enabled=false", "export.target=none", "evaluate.split=validation", "store.lease_ttl_seconds=9")
    assert {str(of()), *(str(of(text)) for text in same)} == {str(of())}
    other = ("train.epochs=7", "data.limit=9", "model.config.hidden_size=64", "tokenize.max_length=12")
    others = (*other, "sweep.metric=eval_accuracy", "sweep.direction=max", "train.global_batch=4,8")
    assert len({str(of()), *(str(of(text)) for text in others)}) == 1 + len(others)


def test_an_edit_of_the_recipe_reaches_no_trial_of_a_sweep_that_runs(folder: Path) -> None:
    batches = []

    def edits(recipe: Any, *arguments: Any) -> Result:
        batches.append((recipe.name, recipe.train.global_batch))
        text = (folder / "tiny.yaml").read_text()
        (folder / "tiny.yaml").write_text(text.replace("global_batch: 32", "global_batch: 16"))
        return trained(recipe, *arguments)

    sweep = going(read_plan("tiny.yaml", [RATE, "sweep.trials=3"]), edits)
    sweep.run_trials()
    assert sweeps._winner(sweep) is not None
    # trials count as no runs of the recipe, and the winner does
    assert batches == [*[("tiny.sweep", 32)] * 3, ("tiny", 32)]


def test_the_winner_runs_again_for_another_best_trial_or_evaluation(folder: Path) -> None:
    sweep = going(read_plan("tiny.yaml", [RATE, "sweep.trials=1"]))
    sweep.run_trials()
    assert sweeps._winner(sweep) is not None
    assert sweep.write()["winner"]["trial"] == 0
    assert sweeps._winner(sweep) is None
    other = going(read_plan("tiny.yaml", [RATE, "sweep.trials=1", "evaluate.export_rows=4"]))
    assert sweeps._winner(other) is not None
    better = BEST._replace(number=1, settings={"train.learning_rate": 1e-4})
    assert document(sweep.plan, [BEST, better], better, sweep.study.winner)["winner"] is None


def test_a_sweep_takes_devices_only_if_trials_are_left(folder: Path) -> None:
    def again(trials: int) -> Any:
        plan = read_plan("tiny.yaml", [RATE, f"sweep.trials={trials}", "tracking.enabled=false"])
        return sweeps.sweep(plan, trained, print)[0]

    first = again(1)
    recipe = settings.load("tiny.yaml")
    with Leases(recipe, open_store(recipe), "another", print).hold_devices():
        assert again(1) == first
        with pytest.raises(ConfigError, match="another sweep or training has the cpu devices"):
            again(2)
    assert len(again(2)["trials"]) == 2


def test_the_page_tells_metrics_on_the_test_split_from_those_of_training(folder: Path) -> None:
    def tested(*arguments: Any) -> Result:
        result = trained(*arguments)
        report = Artifact("sha256:1", "report", {"metrics": {"accuracy": 0.75}}, ())
        result.steps.append(step("evaluate_model", "ran", artifact=report))
        return result

    sweep = going(read_plan("tiny.yaml", [RATE, "sweep.trials=1"]), tested)
    sweep.run_trials()
    sweeps._winner(sweep)
    content = sweep.write()
    assert content["winner"]["test"] == {"accuracy": 0.75}
    assert content["winner"]["metrics"].keys() == {"accuracy", "eval_loss"}
    sweep.write_page(content)
    page = (sweep.plan.folder(sweep.store.home) / "sweep.html").read_text()
    test, training = page.split("on the test split</h2>")[1].split("Its data, training and export</h2>")
    training = training.split("<h2>")[0]
    assert ("0.75" in test, "eval_loss" in test) == (True, False)
    assert ("0.75" in training, "eval_loss" in training) == (False, True)


def test_the_page_shows_no_credentials_and_survives_no_database(folder: Path) -> None:
    sweep = going(read_plan("tiny.yaml", [RATE, "sweep.trials=1"]))
    sweep.run_trials()
    content = sweep.write()
    trial = content["trials"][0] | {"settings": {"data.source": "https://me:pass-word@host/rows"}}
    sweep.write_page(content | {"trials": [trial], "best": None})
    page = sweep.plan.folder(sweep.store.home) / "sweep.html"
    assert "host/rows" in page.read_text()
    assert "pass-word" not in page.read_text()
    assert "Errors of trials" not in page.read_text()
    assert "1 completed; " in page.read_text()
    assert "killed" not in page.read_text()
    sweep.write_page(content | {"trials": [trial | {"state": "killed"}, trial]})
    assert "1 completed, 1 killed; " in page.read_text()
    assert "The sweep was killed during a killed trial, and a later trial has its settings." in page.read_text()
    sweep.write_page(content | {"trials": [trial | {"error": "<b>no memory</b>"}]})
    assert '<td class="error">&lt;b&gt;no memory&lt;/b&gt;</td>' in page.read_text()
    Path(sweep.plan.database(sweep.store.home).removeprefix("sqlite:///")).write_text("no database" * 2000)
    with pytest.raises(StoreError, match="can't be used"):
        sweep.write_page(content)


def test_the_results_in_a_file_show_no_credentials(folder: Path) -> None:
    sweep = going(read_plan("tiny.yaml", [RATE, "sweep.trials=2"]))
    trial = sweep.study.next()
    sweep.study.fail(trial, "https://me:pass-word@host/rows")
    sweep.write()
    text = (sweep.plan.folder(sweep.store.home) / "sweep.json").read_text()
    assert "@host/rows" in text and "pass-word" not in text


def test_the_page_of_a_sweep_hides_the_secrets_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", {})
    redaction.add_secret("hunter42-of-the-sweep")
    failed = Tried(1, {}, None, "failed", "r1", "401 for hunter42-of-the-sweep", 0.0)
    content: Any = {
        "study": "s", "recipe": "tiny", "metric": "eval_loss", "direction": "min", "trials": [failed._asdict()], "best": None,
        "winner": None, "shared_seconds": 0.0,
    }  # fmt: skip
    page = sweep_page(content, None)
    assert "401 for ***" in page and "hunter42" not in page
