"""Errors in the middle of a sweep: each is one clear error, and the trials that finished are kept. Trials take no time."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flows.runner.toy import WordsConfig, graph
from tests.helpers.leases import AWAY
from tests.helpers.runs import context, plan_graph, run_graph, step
from tests.helpers.stores import new_store
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import open_store
from trnflow.flows.runner.devices import device_key
from trnflow.flows.runner.run import Result
from trnflow.flows.sweeps.plan import read_plan
from trnflow.flows.sweeps.study import open_study
from trnflow.flows.sweeps.sweep import Sweep, _opened
from trnflow.flows.sweeps.trial import Watch, remove_partial, seconds_of
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError, Interrupted, MachineError, NonFiniteLoss, StoreError, TrnflowError
from trnflow.tasks.events import EventLog

RATE = "train.learning_rate=1e-5..1e-2:log"
Fault = Callable[[], TrnflowError | None]


def run(
    *overrides: str,
    recipe: str = "tiny.yaml",
    trials: int = 3,
    fault: Fault = lambda: None,
    measured: Callable[[Any], float] = float,
) -> Any:
    """Run the trials of a sweep whose training takes no time, and return the content of sweep.json.

    fault: called before each trial; returns its error; measured: from a trial's learning rate to its loss."""

    def trained(recipe: settings.Recipe, options: Any, run: str, *_: Any) -> Result:
        error = fault()
        meta = {"metrics": {"eval_loss": measured(recipe.train.learning_rate)}}
        steps = [] if error else [step("train", "ran", artifact=Artifact("sha256:0", "model", meta, ()))]
        return Result(run, steps, error=error)

    plan = read_plan(recipe, [RATE, f"sweep.trials={trials}", *overrides])
    store = open_store(plan.recipe)
    store.prepare()
    study = open_study(plan.name, plan.recipe.sweep, plan.space, plan.definition(), plan.database(store.home))
    study.queue_again()
    going = Sweep(plan, store, study, trained, print)
    going.run_trials()
    return going.write()


def written(folder: Path) -> Any:
    return json.loads((folder / ".trnflow/sweeps/tiny/sweep.json").read_text())


def third(fault: Fault) -> Fault:
    """Let the first two trials run, and the others have the fault."""
    begun = [0]

    def count() -> TrnflowError | None:
        begun[0] += 1
        return fault() if begun[0] > 2 else None

    return count


def test_a_study_of_another_recipe_under_the_same_name_is_refused(folder: Path) -> None:
    before = run()
    shutil.copy(folder / "tiny.yaml", folder / "other.yaml")
    with pytest.raises(
        ConfigError, match="the study tiny belongs to another sweep: recipe.name was tiny and is other"
    ) as error:
        run("sweep.name=tiny", recipe="other.yaml")
    assert "--name" in error.value.fix
    assert written(folder) == before == run()


def test_a_database_that_goes_away_in_the_middle_keeps_the_finished_trials(folder: Path) -> None:
    database = folder / ".trnflow/optuna.db"

    def damage() -> None:
        database.write_text("no database" * 1000)

    with pytest.raises(StoreError, match=r"optuna.db, can't be used: .*not a database") as error:
        run(fault=third(damage))
    assert "\n" not in str(error.value)
    assert "run the same command again" in error.value.fix
    before = written(folder)["trials"]
    assert [trial["state"] for trial in before] == ["completed", "completed"]
    database.unlink()
    assert [trial["value"] for trial in run()["trials"]][:2] == [trial["value"] for trial in before]


def test_the_first_cause_is_shown_if_all_trials_fail(folder: Path) -> None:
    causes = iter(["step 3 has loss nan", *["another"] * 9])
    with pytest.raises(
        NonFiniteLoss, match=r"all 3 trials failed; the first \(trial 0, .*\): step 3 has loss nan"
    ) as error:
        run(trials=9, fault=lambda: NonFiniteLoss(next(causes), "lower train.learning_rate"))
    assert error.value.fix == "lower train.learning_rate"
    assert [trial["state"] for trial in written(folder)["trials"]] == ["failed"] * 3
    assert [trial["state"] for trial in run()["trials"]].count("completed") == 3


def test_a_trial_that_fails_after_others_is_left_out(folder: Path) -> None:
    found = run(fault=third(lambda: NonFiniteLoss("step 3 has loss nan")))
    assert [trial["state"] for trial in found["trials"]] == ["completed", "completed", "failed"]
    assert found["best"]["number"] in (0, 1)


def test_a_trial_whose_metric_is_not_finite_is_never_the_best(folder: Path) -> None:
    values = iter([0.3, float("inf"), 0.2])
    found = run("sweep.direction=max", measured=lambda rate: next(values))
    assert [trial["state"] for trial in found["trials"]] == ["completed", "failed", "completed"]
    assert found["trials"][1]["error"] == "eval_loss is inf" and found["best"]["number"] == 0


def test_a_full_disk_ends_the_sweep_and_the_trial_is_repeated(folder: Path) -> None:
    with pytest.raises(MachineError, match="the disk is full"):
        run(fault=third(lambda: MachineError("the disk is full")))
    again = run()["trials"]
    assert [trial["state"] for trial in again] == ["completed", "completed", "killed", "completed"]
    assert again[3]["settings"] == again[2]["settings"]


def test_a_trial_that_was_interrupted_four_times_is_repeated_and_ends(folder: Path) -> None:
    def interrupt() -> TrnflowError:
        return Interrupted("interrupted")

    def terminate() -> TrnflowError:
        raise SystemExit(143)

    for fault, error in ((interrupt, Interrupted), (terminate, SystemExit)) * 2:
        with pytest.raises(error):
            run(trials=1, fault=fault)
    assert [trial["state"] for trial in run(trials=1)["trials"]] == ["killed"] * 4 + ["completed"]


def test_a_metric_that_nobody_reports_ends_the_sweep(folder: Path) -> None:
    with pytest.raises(ConfigError, match="training reports no metric eval_bleu: it reports eval_loss") as error:
        run("sweep.metric=eval_bleu")
    assert "--metric" in error.value.fix
    assert [trial["state"] for trial in run()["trials"]] == ["completed"] * 3


@pytest.mark.parametrize("metric", ["eval_loss", "eval_accuracy", "train_loss", "eval_loss_before"])
def test_the_first_evaluation_shows_which_metrics_there_are(metric: str) -> None:
    """So nobody waits for a training whose result has no such metric."""
    first = {"metrics": {"step": 0, "values": {"eval_loss": 0.7, "eval_accuracy": 0.5}}}
    begun = {"key": "k", "attempt": "a", "settings": {}}
    EventLog(Watch(None, None, metric, threading.Event())).stage("train", **begun)(first)
    for other in (f"{metric}s", "loss"):
        emit = EventLog(Watch(None, None, other, threading.Event())).stage("train", **begun)
        emit({"metrics": {"step": 10, "values": {"grad_norm": 1.0}}})
        with pytest.raises(ConfigError, match="it reports eval_accuracy, eval_accuracy_before, eval_loss"):
            emit(first)


def test_what_prunes_a_trial_is_a_number_that_training_has_reached() -> None:
    """Neither the model before training nor a loss that is not finite, of which the study is not told."""
    told: list[tuple[float, int]] = []

    def report(trial: Any, value: float, step: int) -> bool:
        told.append((value, step))
        return True  # worse than the median

    watch = Watch(SimpleNamespace(report=report), None, "eval_loss", threading.Event())
    emit = EventLog(watch).stage("train", key="k", attempt="a", settings={})
    for number, value in ((0, 0.9), (10, float("inf")), (20, float("nan"))):
        emit({"metrics": {"step": number, "values": {"eval_loss": value}}})
    assert not told and not watch.pruned
    with pytest.raises(Interrupted, match="the trial was ended at step 30: its eval_loss is worse than the median"):
        emit({"metrics": {"step": 30, "values": {"eval_loss": 0.8}}})
    assert told == [(0.8, 30)] and watch.pruned


def test_partial_state_of_a_pruned_trial_goes_unless_another_run_trains_with_its_key(tmp_path: Path) -> None:
    store, key = new_store(tmp_path), "a" * 64
    (tmp_path / "state").mkdir()
    (tmp_path / "state/weights").write_text("w")
    store.partial(key).commit(10, tmp_path / "state")
    other = store.waiter(key, run="other", attempt="other", ttl=1000.0).acquire()
    assert other is not None
    with other:
        remove_partial(store, key, "ours", 1000.0)
        assert store.partial(key).steps() == [10]
    remove_partial(store, key, "ours", 1000.0)
    assert store.partial(key).steps() == []


@pytest.mark.process  # it starts a warm parent, unless a test before it has
@pytest.mark.parametrize("of", ["the stage", "the devices"])
def test_a_trial_that_waits_for_another_run_says_so_and_ends_when_the_sweep_stops(folder: Path, of: str) -> None:
    """The other run has the lease of the stage's key, or that of its devices, and does not end."""
    (folder / "words.txt").write_text("a bb")
    store = new_store(folder)
    config = WordsConfig(path=str(folder / "words.txt"))
    key = plan_graph(graph(config), store).steps["words"].key if of == "the stage" else device_key("pool")
    other = store.waiter(key, run="other", attempt="other", ttl=1000.0).acquire()
    assert other is not None
    said: list[str] = []
    stopping = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        stopping.set()  # Ctrl-C

    watch = Watch(None, SimpleNamespace(number=3), "eval_loss", stopping, say)
    devices = {"words": ("pool",)} if of == "the devices" else {}
    with other:
        if of == "the devices":  # whose leases are not waited for if this process has them
            name = f"leases/{key}/1.json"
            document = json.loads(store.backend.read(name))
            store.backend.replace(name, json.dumps(document | {"process": AWAY._asdict()}).encode())
        with pytest.raises(Interrupted, match="the sweep was interrupted"):
            run_graph(graph(config), context(store, watch, devices=devices))
    (line,) = said
    assert line.startswith("trial 3: words waits for ")
    assert "(run other, since " in line


@pytest.mark.parametrize(
    ("name", "action", "seconds"), [("tokenize_text", "hit", 9.0), ("tokenize_text", "ran", 0.0), ("train", "hit", 0.0)]
)
def test_a_trial_is_charged_what_it_found_of_other_stages(
    tmp_path: Path, name: str, action: str, seconds: float
) -> None:
    found: Any = SimpleNamespace(name=name, action=action, key=None, seconds=9.0)
    assert seconds_of(new_store(tmp_path), found) == seconds


def test_a_study_whose_data_changed_since_its_trials_is_refused(folder: Path) -> None:
    rows = folder / "rows.csv"
    rows.write_text("text,label\ngood,a\nbad,b\n")
    data = [f"data={{source: {rows}, text: text, label: label, split: {{validation: 0.2}}}}"]
    plan = read_plan("tiny.yaml", [RATE, *data])
    store = open_store(plan.recipe)
    store.prepare()
    study = _opened(plan, store, offline=True)
    study.complete(study.next(), 1.0)
    assert len(_opened(plan, store, offline=True).trials()) == 1
    rows.write_text("text,label\nbest,a\nbad,b\n")
    with pytest.raises(
        ConfigError, match="study tiny belongs to another sweep: the data changed since its trials"
    ) as error:
        _opened(plan, store, offline=True)
    assert "--name" in error.value.fix
    rows.write_text("text,label\ngood,a\nbad,b\n")
    assert len(_opened(plan, store, offline=True).trials()) == 1
