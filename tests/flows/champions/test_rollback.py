"""A rollback returns to the model that the champion replaced; and which model serves, beside one that a command used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.champions import rollback
from trnflow.flows.champions.forced import forced_in
from trnflow.flows.champions.frozen_rows import append_secured
from trnflow.flows.champions.lost import lost_champion
from trnflow.flows.champions.rollback import _roll_back
from trnflow.flows.champions.serving import serving_beside
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.tasks.errors import BlobLost, ConfigError, StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.ledger import append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import NewEntry

FORCED: Any = {"who": "me@here", "why": "the judge was away", "broke": ["accuracy 0.5 is below 0.6"]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


@pytest.fixture
def recipe() -> Recipe:
    return load("demo")


def model(store: Store, name: str) -> str:
    folder = store.home / f"made-{name}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(name)
    return store.ingest(folder, "model", {"name": name}).digest


def add(store: Store, outcome: Any, champion: str | None = None, **fields: Any) -> None:
    ledger = read_ledger(store, "demo")
    before = ledger.champion["champion"] if ledger.champion else None
    new = NewEntry(outcome=outcome, by="promote", why="", champion=champion or before, **fields)
    if champion is not None:
        new["replaces"] = before
    assert append_ledger(store, "demo", new, ledger.number) is not None


def champion(store: Store) -> str:
    found = read_ledger(store, "demo").champion
    assert found is not None
    return str(found["champion"])


def test_each_rollback_goes_one_model_back_and_the_first_stays(store: Store, recipe: Recipe) -> None:
    first, second, third = (model(store, name) for name in ("first", "second", "third"))
    for digest in (first, second, third):
        add(store, "promoted", digest)
    add(store, "kept", challenger=model(store, "worse"))
    assert _roll_back(recipe, store)["champion"] == champion(store) == second
    assert _roll_back(recipe, store)["champion"] == champion(store) == first, "not to the third, from which it came"
    with pytest.raises(ConfigError, match=f"demo has no champion before {first[:19]}, which was the first"):
        _roll_back(recipe, store)
    add(store, "promoted", third)
    assert _roll_back(recipe, store)["champion"] == first


def test_a_model_whose_bytes_are_gone_does_not_come_back(store: Store, recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match="demo has no champion"):
        _roll_back(recipe, store)
    first, second = model(store, "first"), model(store, "second")
    add(store, "promoted", first)
    add(store, "promoted", second)
    (weights,) = store.artifact(first).files
    assert store.backend.local is not None
    store.backend.remove(f"blobs/sha256/{weights.digest[7:9]}/{weights.digest[7:]}")
    with pytest.raises(BlobLost, match="the store has lost weights of the earlier champion"):
        _roll_back(recipe, store)
    assert champion(store) == second


def test_the_champion_is_named_beside_another_model_alone(store: Store) -> None:
    first, second = model(store, "first"), model(store, "second")
    assert serving_beside(store, "demo", first, "demo") is None
    add(store, "promoted", first)
    add(store, "promoted", second)
    used, itself = (serving_beside(store, "demo", digest, "my demo.yaml") for digest in (first, second))
    assert used is not None and itself is not None
    assert used.is_other and not itself.is_other
    assert (
        str(used) == f"{first[:19]}, not the champion: champion 2 ({second[:19]}) serves, named 'my demo.yaml@champion'"
    )
    assert serving_beside(store, "demo", None, "demo") is None


def test_that_a_champion_was_forced_is_said_of_it_alone_and_without_the_person(store: Store) -> None:
    first, second = model(store, "first"), model(store, "second")
    add(store, "promoted", first)
    add(store, "promoted", second, forced=FORCED)
    assert forced_in(store, first) == ""
    said = forced_in(store, second)
    assert said.startswith("This model was made champion 2 of demo by force on ") and "me@here" not in said
    assert said.endswith("the judge was away (broken: accuracy 0.5 is below 0.6).")
    add(store, "promoted", model(store, "third"))
    assert forced_in(store, second) == "", "it is the champion no longer"


def test_a_champion_without_manifest_can_not_serve(store: Store) -> None:
    first = model(store, "first")
    add(store, "promoted", first)
    assert lost_champion(store, read_ledger(store, "demo")) is None
    store.backend.remove(blob_name(first))
    said = lost_champion(store, read_ledger(store, "demo"))
    assert said is not None and said.startswith(f"champion 1 of demo ({first[:19]}) can't serve: ")
    assert said.endswith("`trnflow rollback demo` takes the one before")


def test_an_entry_whose_artifact_is_gone_does_not_stay(store: Store) -> None:
    artifact = store.artifact(model(store, "rows"))
    for digest in (artifact.digest, artifact.files[0].digest):
        store.backend.remove(blob_name(digest))
    new = NewEntry(outcome="frozen", by="freeze", why="", frozen=artifact.digest)
    with pytest.raises(StoreError, match=f"{artifact.digest[:19]} was collected meanwhile"):
        append_secured(store, "demo", new, 0, artifact)
    assert read_ledger(store, "demo").stands["frozen"] is None


@pytest.mark.parametrize("other", ["promoted", "kept"])
def test_a_rollback_does_not_go_over_what_another_process_promoted_meanwhile(
    store: Store, recipe: Recipe, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (model(store, name) for name in ("first", "second", "third"))
    add(store, "promoted", first)
    add(store, "promoted", second)

    def too_late(*arguments: Any) -> None:
        monkeypatch.undo()
        add(store, other, **({"champion": third} if other == "promoted" else {"challenger": third}))

    monkeypatch.setattr(rollback, "append_secured", too_late)
    if other == "kept":
        assert _roll_back(recipe, store)["champion"] == first
        return
    with pytest.raises(StoreError, match="another process changed the champion of demo meanwhile"):
        _roll_back(recipe, store)
    assert champion(store) == third
