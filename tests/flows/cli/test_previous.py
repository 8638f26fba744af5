"""The page of a run beside the recipe's run before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers.stores import new_store
from trnflow.flows.cli.history_commands import _previous, differences


def test_what_changed_since_the_run_before_shows_no_secret(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    names = [f"20260101T00000{number}-{number:06x}" for number in range(3)]
    recipes = ("mine", "other", "mine")
    for number, (name, recipe) in enumerate(zip(names, recipes, strict=True)):
        source = f"https://me:hunter42@host/{number}.csv"
        document: Any = {"schema": 1, "recipe": recipe, "stages": [], "resolved": {"data": {"source": source}}}
        store.write_run(name, document)
    newest: Any = store.run(names[2])
    found = _previous(store, names[2], newest)
    assert found is not None and found[0] == names[0], "the run before is of another recipe"
    assert found[1]["settings"] == [
        {"name": "data.source", "before": "https://***@host/0.csv", "after": "https://***@host/2.csv"}
    ]
    assert _previous(store, names[1], newest | {"recipe": "other"}) is None


def test_two_runs_are_compared_in_the_order_in_which_they_are_named_without_secrets(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for number, outcome in enumerate(("failed", "completed")):
        resolved = {"train": {"seed": number}, "data": {"source": f"https://me:hunter42@host/{number}.csv"}}
        common: Any = {"why": "", "key": None, "artifact": None, "seconds": 1.0, "figures": {}}
        stages = [
            {**common, "stage": "train", "action": "ran", "metrics": {"eval_loss": 0.5 + number}},
            {**common, "stage": "consolidate", "action": "hit", "metrics": {}},
        ]
        document: Any = {
            "schema": 1, "recipe": "mine", "outcome": outcome, "seconds": 3.0, "stages": stages, "resolved": resolved,
        }  # fmt: skip
        store.write_run(f"20260101T00000{number}-00000{number}", document)
    first, second = sorted(store.run_ids())
    found = differences(store, second, first)
    assert (found["before"]["run"], found["after"]["run"]) == (second, first)
    assert (found["before"]["outcome"], found["before"]["ran"], found["before"]["hit"]) == ("completed", 1, 1)
    assert found["before"]["metrics"] == {"eval_loss": 1.5}
    assert [(one["name"], one["before"], one["after"]) for one in found["settings"]] == [
        ("data.source", "https://***@host/1.csv", "https://***@host/0.csv"), ("train.seed", 1, 0),
    ]  # fmt: skip
    assert [(one["before"], one["after"]) for one in found["metrics"]] == [(1.5, 0.5)]
