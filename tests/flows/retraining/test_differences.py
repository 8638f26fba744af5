"""What a retrain says has changed since the newest judged model, by key documents; `test_retrain.py` makes them by runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.recipes.recipe import load
from trnflow.flows.retraining import change
from trnflow.flows.retraining.change import _difference, _said, _settled, _start
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store.ledger import append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import NewEntry


def document(stage: str, **parts: Any) -> Any:
    usual = {"code": {"m": "c"}, "params": {"seed": 1}, "inputs": {"packed": "sha256:p"}, "env": {"torch": "2.9"}}
    return {"schema": 1, "stage": stage, **usual, "accel": {"device": "cpu"}, **parts}


RUN: Any = {
    "stages": [
        {"stage": stage, "key": key}
        for stage, key in (("train", "k1"), ("consolidate", "k2"), ("evaluate_model", None))
    ]
}


def found(
    monkeypatch: pytest.MonkeyPatch, present: Any = None, consolidation: Any = None, lost: str = "", gone: tuple[str, ...] = (),
    portable: bool = False,
) -> str:  # fmt: skip
    """How the present plan differs from the run. lost: a file that the store has no more; gone: stages without record."""
    records = {
        stage: {"document": document(stage), "artifact": f"sha256:{stage}"} for stage in ("train", "consolidate")
    }
    store: Any = SimpleNamespace(
        record=lambda stage, key: None if stage in gone else records[stage],
        artifact=lambda digest: digest,
        missing=lambda artifact: SimpleNamespace(path=lost) if lost else None,
    )
    plan: Any = SimpleNamespace(steps={"train": SimpleNamespace(document=present or document("train"))})
    monkeypatch.setattr(change, "_consolidation", lambda plan, store, shards: consolidation or document("consolidate"))
    return _difference(plan, store, RUN, portable=portable)


def test_the_same_data_code_and_settings_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch) == ""
    promoted = document("train", inputs={"packed": "sha256:p", "warm_start": "sha256:champion"})
    assert found(monkeypatch, promoted) == "", "each promotion would start the next training"


def test_a_change_of_training_or_of_the_published_model_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said = found(monkeypatch, document("train", params={"seed": 2}))
    assert said.startswith("settings changed (train: ") and "seed: 1 -> 2" in said
    assert found(monkeypatch, document("train", code={"m": "d"})).startswith("the code changed (train: ")
    said = found(monkeypatch, consolidation=document("consolidate", env={"torch": "3.0"}))
    assert said.startswith("libraries changed (consolidate: ")


def test_a_judged_model_that_the_store_lost_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        found(monkeypatch, lost="model.safetensors")
        == "the store has lost model.safetensors of the newest judged model"
    )
    for stage in ("train", "consolidate"):
        assert found(monkeypatch, gone=(stage,)) == "the store has lost how the newest judged model was made"


def test_another_machine_is_no_reason_where_a_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    there = document("train", accel={"device": "cuda"}, env={"torch": "2.9+cu128"})
    assert found(monkeypatch, there).startswith("libraries and the device changed (train: ")
    assert found(monkeypatch, there, portable=True) == ""
    assert found(monkeypatch, document("train", params={"seed": 2}), portable=True).startswith("settings changed")


def test_rows_are_called_the_data() -> None:
    was, now_is = (document("load_data", inputs={"source": name}) for name in ("a", "b"))
    assert _said("load_data", was, now_is).startswith("the data changed (load_data: ")
    assert _said("load_data", was, was) == ""


def test_what_follows_from_training_is_no_change_of_the_published_model() -> None:
    inputs = {"shards": "sha256:s", "weights": "sha256:w", "dtype": "float32", "model": "sha256:m"}
    assert _settled(document("consolidate", inputs=inputs))["inputs"] == {"model": "sha256:m"}


def test_training_starts_from_the_champion_by_its_number(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    recipe = load("demo", ["train.warm_start_from=demo@champion"])
    assert _start(recipe, store) is None, "the first one begins without"
    for digit in "ab":
        entry = NewEntry(outcome="promoted", by="promote", why="", champion=f"sha256:{digit * 64}")
        assert append_ledger(store, "demo", entry, read_ledger(store, "demo").number) is not None
    assert _start(recipe, store) == "demo@2"
    assert _start(load("demo", ["train.warm_start_from=demo@1"]), store) == "demo@1"
    assert _start(load("demo"), store) is None
    with pytest.raises(ConfigError, match="train.warm_start_from: other has no champion"):
        _start(load("demo", ["train.warm_start_from=other@champion"]), store)
