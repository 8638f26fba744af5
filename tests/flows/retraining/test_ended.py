"""How the newest retrain ended, in the ledger: what it counts, that it stays, and that it keeps nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.flows.champions.conftest import write_tiny
from trnflow.flows.champions.budget import settings_of
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.retraining.change import _judged_otherwise, _portable
from trnflow.flows.retraining.ended import newest_ended, present_data, write_ended
from trnflow.flows.retraining.outcome import Retrained
from trnflow.tasks.documents import KeyDocument
from trnflow.tasks.errors import ConfigError, DataError, Interrupted, StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.store.ledger import read_ledger
from trnflow.tasks.store.verify import verify

FAILED = Retrained("tiny", None, False, "broken", error=DataError("broken", "mend it"))
KEPT = Retrained("tiny", None, True, "not better")


def test_failures_on_one_data_count_and_leave_what_was_settled(store: Store) -> None:
    assert newest_ended(store, "tiny") is None
    found = []
    for done, data in ((FAILED, "a"), (KEPT, "a"), (FAILED, "b"), (FAILED, "b"), (FAILED, "c"), (FAILED, None)):
        write_ended(store, done, data)
        ended = newest_ended(store, "tiny")
        assert ended is not None and ended.data == data
        found.append((ended.outcome, ended.settled, ended.failures))
    assert found == [
        ("failed", None, 1), ("kept", "a", 0), ("failed", "a", 1), ("failed", "a", 2), ("failed", "a", 1), ("failed", "a", 1),
    ]  # fmt: skip


def test_an_interrupted_retrain_is_not_on_record(store: Store) -> None:
    write_ended(store, KEPT, "a")
    write_ended(store, Retrained("tiny", None, True, "", error=Interrupted("interrupted", "again")), "b")
    ended = newest_ended(store, "tiny")
    assert ended is not None and (ended.outcome, ended.data) == ("kept", "a")


@pytest.mark.parametrize(
    ("ended", "outcome", "code"),
    [
        (KEPT, "kept", 0),
        (replace(KEPT, promoted=True), "promoted", 0),
        (replace(KEPT, changed=False), "unchanged", 0),
        (replace(KEPT, stopped=True), "stopped", 1),
        (FAILED, "failed", 1),
        (replace(FAILED, error=ConfigError("wrong", "mend it")), "failed", 2),
        (replace(FAILED, error=Interrupted("interrupted", "again")), "failed", 130),
    ],
)
def test_a_retrain_that_was_stopped_or_failed_ends_with_an_exit_code(ended: Retrained, outcome: str, code: int) -> None:
    assert (ended.outcome, ended.exit_code) == (outcome, code)


def test_another_build_or_device_is_no_change_and_another_version_is() -> None:
    def portable(torch: str, device: str = "cpu") -> KeyDocument:
        env, accel = {"torch": torch}, {"device": device}
        return _portable(KeyDocument(schema=1, stage="train", code={}, params={}, inputs={}, env=env, accel=accel))

    assert portable("2.9.1+cu128", "cuda") == portable("2.9.1") != portable("2.9.2")


def test_gc_keeps_the_file_and_nothing_that_it_names(store: Store, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/x").write_bytes(b"model")
    model = store.ingest(tmp_path / "made", "model", {}).digest
    write_ended(store, Retrained("../tiny", "gone", True, "", challenger=model), model)
    assert verify(store.backend).problems == []
    collect(store.backend, Policy(grace=0.0), yes=True)
    assert newest_ended(store, "../tiny") is not None
    assert store.backend.names("blobs") == []


def test_what_is_unchanged_is_an_entry_only_where_the_data_was_not_settled(store: Store) -> None:
    unchanged = Retrained("tiny", None, False, "the same")
    for data in ("a", "a", "b", "a", "a", None, None):
        write_ended(store, unchanged, data)
    entries = reversed(read_ledger(store, "tiny").entries())
    assert [(entry["outcome"], entry["data"]) for entry in entries] == [
        ("unchanged", data) for data in ("a", "b", "a", None, None)
    ]
    write_ended(store, FAILED, "a")
    write_ended(store, unchanged, "a")  # what failed once is settled now
    ended = newest_ended(store, "tiny")
    assert ended is not None and (ended.outcome, ended.settled, ended.failures) == ("unchanged", "a", 0)


@pytest.mark.parametrize("name", ["retrained/tiny", "judged/tiny", "ledger/tiny/1"])
def test_a_damaged_file_is_one_clear_error_that_names_it(store: Store, name: str) -> None:
    store.backend.replace(f"roots/{name}.json", b"{}")
    for act in (lambda: newest_ended(store, "tiny"), lambda: write_ended(store, FAILED, "a")):
        with pytest.raises(StoreError, match=rf"roots/{name}\.json can't be read") as refused:
            act()
        assert "restore or remove it" in refused.value.fix
    store.backend.remove(f"roots/{name}.json")
    write_ended(store, FAILED, "a")
    ended = newest_ended(store, "tiny")
    assert ended is not None and ended.failures == 1


def test_the_digest_of_data_goes_by_bytes_and_not_by_names_and_times(store: Store, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    recipe = settings.load(str(tmp_path / "tiny.yaml"))
    first = present_data(recipe, store)
    (tmp_path / "rows/train.jsonl").touch()
    (tmp_path / "rows/test.jsonl").rename(tmp_path / "rows/part-test.jsonl")
    assert present_data(recipe, store) == first
    with (tmp_path / "rows/train.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"text": "more", "label": "pos"}))
    assert present_data(recipe, store) != first


def test_a_retrain_that_compared_nothing_has_no_metrics() -> None:
    document = Retrained("mine", None, False, "nothing changed").to_json()
    assert document["metrics"] is None and document["report"] is None
    assert Retrained("mine", "r1", True, "new rows").to_json()["report"] == "trnflow report r1"


def test_checks_are_not_asked_again_of_scores_that_the_store_has_lost(store: Store, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    recipe = settings.load(str(tmp_path / "tiny.yaml"))
    recipe = recipe.model_copy(update={"promote": recipe.promote.model_copy(update={"checks": ("mine.checks:fair",)})})
    gone = f"sha256:{'0' * 64}"
    judged = {"outcome": "kept", "settings": settings_of(recipe.promote), "scores": gone, "frozen": gone, "why": ""}
    context, ledger = SimpleNamespace(recipe=recipe, store=store), SimpleNamespace(judged=judged, champion=None)
    assert _judged_otherwise(context, ledger) == ""  # type: ignore[arg-type]
    judged["settings"] = {**settings_of(recipe.promote), "confidence": 0.5}
    assert "promote.confidence changed" in _judged_otherwise(context, ledger)  # type: ignore[arg-type]
