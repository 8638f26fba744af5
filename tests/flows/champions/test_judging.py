"""What `trnflow promote` makes of two models' scores on the frozen rows, and with what settings it has models scored. No model
is run; `test_champions.py` does."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.metadata import metadata_of
from tests.helpers.runs import context
from tests.helpers.stores import new_store
from trnflow.flows.champions import own_judges, promote
from trnflow.flows.champions.contenders import Contender
from trnflow.flows.champions.forced import Force
from trnflow.flows.champions.frozen_rows import Frozen
from trnflow.flows.champions.promote import Decision, Round, _Judging
from trnflow.flows.champions.scoring import Scored, scoring
from trnflow.flows.recipes.recipe import load
from trnflow.tasks.artifact import Artifact, Source
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.events import EventLog
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import NewEntry

ROWS = 200
SETTINGS = ["promote.looks_per_year=12", "promote.metric=accuracy"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


def ingested(store: Store, kind: str, name: str, **meta: Any) -> Artifact:
    folder = store.home / f"made-{kind}-{name}"
    folder.mkdir(parents=True)
    (folder / "file").write_text(name)
    return store.artifact(store.ingest(folder, kind, meta).digest)


class Judge:
    """Judges challengers with given numbers of wrong rows, of ROWS, in the ledger of one store."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.wrong = store, dict[str, int]()
        self.frozen = Frozen(1, ingested(store, "frozen", "rows", rows=ROWS))
        monkeypatch.setattr(promote, "score", lambda context, model, frozen, log: self.scored(model.artifact.digest))

    def scored(self, digest: str) -> Scored:
        wrong = self.wrong[digest]
        folder = self.store.home / f"scored-{digest[7:]}"
        folder.mkdir(exist_ok=True)
        predicted = ["bad"] * wrong + ["good"] * (ROWS - wrong)
        columns = {"row": range(ROWS), "frozen_row": range(ROWS), "label": ["good"] * ROWS, "predicted": predicted}
        pq.write_table(pa.table({**columns, "loss": [0.5] * ROWS}), folder / "scores.parquet")
        return Scored(self.store.artifact(self.store.ingest(folder, "scores", {}).digest), key_of(digest))

    def model(self, name: str, wrong: int, task: str = "classification") -> Contender:
        meta = metadata_of("consolidate", task=task, labels=["bad", "good"], lengths=[16])
        made = ingested(self.store, "model", name, **meta)
        self.wrong[made.digest] = wrong
        return Contender(made, {"format": {}, "tokenize": {}}, None, ({"stage": "consolidate", "key": key_of(name)},))

    def __call__(self, challenger: Contender, *settings: str, **more: Any) -> Decision:
        opened = context(self.store, settings=[*SETTINGS, *settings])
        given = {"training": None, "force": None, **more}
        return _Judging(opened, challenger, EventLog(), self.frozen, False, **given).decide()


def key_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@pytest.fixture
def judge(store: Store, monkeypatch: pytest.MonkeyPatch) -> Judge:
    return Judge(store, monkeypatch)


def test_a_model_that_is_right_more_often_replaces_the_champion_and_a_worse_one_does_not(judge: Judge) -> None:
    first, better, worse = judge.model("first", 60), judge.model("better", 20), judge.model("worse", 50)
    decided = judge(first)
    assert (decided.promoted, decided.number, decided.why) == (True, 1, "the first champion")
    decided = judge(better)
    assert (decided.promoted, decided.number, decided.champion) == (True, 2, better.artifact.digest)
    found = decided.comparison
    assert found is not None and found.metric == "accuracy" and found.differing == 40
    assert (found.champion, found.challenger, found.difference) == pytest.approx((0.7, 0.9, 0.2))
    entry = read_ledger(judge.store, "toy").champion
    assert entry is not None and entry["replaces"] == first.artifact.digest
    assert entry["records"] == [
        {"stage": "consolidate", "key": key_of("better")}, {"stage": "score_rows", "key": key_of(better.artifact.digest)},
    ]  # fmt: skip
    decided = judge(worse)
    assert (decided.promoted, decided.number, decided.champion) == (False, 2, better.artifact.digest)
    assert decided.why.startswith("surely worse than the champion on 200 frozen rows: accuracy 0.75 against 0.9;")


def test_a_small_gain_is_not_surely_better(judge: Judge) -> None:
    judge(judge.model("first", 60))
    decided = judge(judge.model("nearly", 59))
    assert not decided.promoted and decided.why.startswith("not surely better (1 rows are judged differently, ")


def test_of_a_year_whose_budget_is_spent_no_model_wins(judge: Judge) -> None:
    judge(judge.model("first", 60))
    judge(judge.model("better", 20), "promote.confidence=0.8", "promote.looks_per_year=1")
    decided = judge(judge.model("best", 0))
    assert not decided.promoted and "(the year's budget of judgements is spent: " in decided.why


def test_models_of_two_tasks_are_not_compared(judge: Judge) -> None:
    judge(judge.model("first", 60))
    with pytest.raises(DataError, match="the champion is a model for classification, the challenger for regression"):
        judge(judge.model("other", 20, task="regression"))


def test_a_check_that_fails_is_an_error_and_by_force_a_reason(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusals(*_: Any) -> list[str]:
        raise DataError("the check divides by zero", "mend it")

    monkeypatch.setattr(promote, "refusals", refusals)
    challenger = judge.model("first", 60)
    with pytest.raises(DataError, match="divides by zero"):
        judge(challenger)
    decided = judge(challenger, force=Force("me@here", "the check is wrong"))
    assert decided.promoted and decided.forced is not None
    assert decided.forced["broke"] == ["the check divides by zero"]


def test_checks_and_bounds_judge_the_first_champion_too(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="promote bounds accuracy, which the newest evaluation"):
        judge(judge.model("first", 60), "promote.at_least={accuracy: 0.9}")
    monkeypatch.setattr(promote, "refusals", lambda *_: ["unfair"])
    decided = judge(judge.model("second", 60))
    assert (decided.promoted, decided.champion, decided.why) == (False, None, "refused by promote.checks: unfair")


def test_a_retrain_does_not_promote_what_was_rolled_back(judge: Judge) -> None:
    first, better = judge.model("first", 60), judge.model("better", 20)
    judge(first)
    judge(better)
    back = NewEntry(
        outcome="rolled back", by="rollback", why="", champion=first.artifact.digest, replaces=better.artifact.digest,
        task="classification", shaping=first.shaping,
    )  # fmt: skip
    assert append_ledger(judge.store, "toy", back, read_ledger(judge.store, "toy").number) is not None
    retrained = Round("r", "sha256:data", [], lambda: None)
    decided = judge(better, training=retrained)
    assert not decided.promoted and decided.why.startswith("the model was rolled back in champion 3; ")
    assert judge(better).promoted, "a person may"


@pytest.mark.parametrize(
    ("recipe", "task", "labels", "longest", "most"),
    [
        ("demo", "classification", ["bad", "good"], 64, 64),
        ("demo-llm", "causal_lm", None, 64, 1 << 24),  # longer rows are read in windows
    ],
)
def test_frozen_rows_are_formatted_and_cut_as_the_models_own(
    recipe: str, task: str, labels: Any, longest: int, most: int
) -> None:
    settings = load(recipe, ["train.device=cpu", "evaluate.device=cuda"])
    shaping = {part: getattr(settings, part).model_dump(mode="json") for part in ("format", "tokenize")}
    made = Artifact("sha256:m", "model", {"task": task, "labels": labels, "lengths": [32, longest, 48]}, ())
    contender = Contender(made, shaping, None, ())
    graph = scoring(settings, contender, Artifact("sha256:f", "frozen", {}, ()), Source("model", {}, {}))
    configs: dict[str, Any] = {node.name: node.config for node in graph.nodes}
    assert configs["number_labels"].labels == (None if labels is None else tuple(labels))
    assert configs["format_prompts"].task == settings.format.task
    tokenized = configs["tokenize_text"]
    assert (tokenized.train, tokenized.overlong, tokenized.max_length) == (None, "truncate", most)
    assert (configs["score_rows"].window, configs["score_rows"].device) == (longest, "cuda")


def test_a_metric_and_checks_of_the_users_get_the_settings_of_promote(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    comparison = dict.fromkeys(("champion", "challenger", "difference", "low", "high", "alpha"), 0.0)
    answer = {"metric": "cost", **comparison, "rows": 1, "is_better": False, "differing": 0, "refusals": ["unfair"]}
    names = {*own_judges.Comparison._fields, "refusals"}

    def make(node: Any, context: Any) -> Any:
        made.append(node)
        wanted = {"refusals"} if node.name == "check_models" else names - {"refusals"}
        return {name: value for name, value in answer.items() if name in wanted}

    monkeypatch.setattr(own_judges, "_made", make)
    monkeypatch.setattr(own_judges, "own_code", lambda *_: None)
    own: Any = SimpleNamespace(name="cost", less_is_better=True)
    config = PromoteConfig(margin=0.25, resamples=500, seed=7, checks=())
    recipe = SimpleNamespace(
        evaluate=SimpleNamespace(metrics=["another", own]), promote=SimpleNamespace(checks=["a:one", "a:two"])
    )
    given: Any = SimpleNamespace(recipe=recipe)
    ours, theirs, rows = (Artifact(f"sha256:{name}", "scores", {}, ()) for name in ("ours", "theirs", "rows"))
    own_judges.compare_by_own(given, own, config, 0.125, Scored(theirs, "t"), Scored(ours, "o"), rows)
    assert made[0].config.model_dump() == {
        "setting": "evaluate.metrics.1.function", "metric": "cost", "less_is_better": True, "margin": 0.25, "alpha": 0.125,
        "resamples": 500, "seed": 7,
    }  # fmt: skip
    assert made[0].inputs == {"champion": theirs, "challenger": ours, "frozen": rows}
    assert own_judges.refusals(given, Scored(ours, "o"), None, rows) == ["unfair"]
    assert made[1].config.settings == ("promote.checks.0", "promote.checks.1")
    assert made[1].inputs == {"challenger": ours, "frozen": rows}
