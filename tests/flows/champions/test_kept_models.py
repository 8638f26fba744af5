"""Which models gc keeps for a champion, and which bounds refuse a challenger."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.flows.champions import contenders, promote
from trnflow.flows.champions.contenders import judged_models
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.promotion.settings import PromoteConfig


def test_as_many_judged_models_are_kept_as_the_recipe_says_and_the_champion() -> None:
    def record(run: str) -> Any:
        return {"run": run, "resolved": {}, "stages": [{"stage": "consolidate", "artifact": f"m{run[1:]}"}]}

    runs = {f"r{number}": record(f"r{number}") for number in range(7)}
    store: Any = SimpleNamespace(run=runs.get, run_ids=lambda: [*runs])
    ledger: Any = SimpleNamespace(stands={"judged": [{"run": run} for run in ("r1", "gone", "r2", "r3", "r4")]})
    for keep, kept in ((1, ["m0"]), (3, ["m0", "m1", "m2"]), (9, ["m0", "m1", "m2", "m3", "m4"])):
        found = judged_models(store, ledger, "r0", "m0", "m6", keep)
        assert [one["model"] for one in found] == [*kept, "m6"]
        assert [one["run"] for one in found] == [f"r{one['model'][1:]}" for one in found]
    assert [one["model"] for one in judged_models(store, ledger, "r0", "m0", "m0", 1)] == ["m0"]


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ({"at_least": {"accuracy": 0.5}, "at_most": {"loss": 0.25}}, []),
        ({"at_least": {"accuracy": 0.6}}, ["accuracy is 0.5, below 0.6"]),
        ({"at_most": {"loss": 0.2}}, ["loss is 0.25, above 0.2"]),
    ],
)
def test_a_bound_refuses_what_is_beyond_it_and_not_what_is_on_it(
    bounds: dict[str, Any], why: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {"accuracy": 0.5, "loss": 0.25}
    monkeypatch.setattr(promote, "checked_artifact", lambda *_: SimpleNamespace(meta={"metrics": metrics}))
    challenger: Any = SimpleNamespace(evaluation="sha256:e")
    assert promote._broken_bounds(PromoteConfig(**bounds), challenger, None) == why  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="promote bounds f1, which the newest evaluation"):
        promote._broken_bounds(PromoteConfig(at_most={"f1": 1.0}), challenger, None)  # type: ignore[arg-type]


def test_a_champion_keeps_the_records_of_the_evaluation_that_it_names() -> None:
    def record(stage: str, key: str, **inputs: str) -> Any:
        return {"stage": stage, "key": key, "artifact": f"of-{key}", "document": {"inputs": inputs}}

    newest_first = [record("evaluate_model", key, weights="m") for key in ("new", "old")]
    records = {
        "consolidate": [record("consolidate", "model") | {"artifact": "m"}],
        "evaluate_model": [record("evaluate_model", "other", weights="n"), *newest_first],
    }
    store: Any = SimpleNamespace(records=records.__getitem__)
    model: Any = SimpleNamespace(digest="m")
    found = contenders._contender(store, model, {"format": {}, "tokenize": {}})
    assert found.evaluation == "of-new"
    assert [one["key"] for one in found.records] == ["model", "new"]
