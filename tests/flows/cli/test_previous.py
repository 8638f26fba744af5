"""The page of a run beside the recipe's run before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers.stores import new_store
from trnflow.flows.cli.history_commands import _previous


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
