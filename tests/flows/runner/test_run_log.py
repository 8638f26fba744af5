"""The store gets a copy of a run's events, which gc collects with the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.runner.toy import CountConfig, WordsConfig, graph
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from tests.helpers.runs import context
from tests.helpers.stores import new_store
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import Result, run
from trnflow.tasks.errors import DataError, StoreError
from trnflow.tasks.events import log_file, read_log
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "words.txt").write_text("a bb")
    return new_store(tmp_path)


def toy(store: Store, name: str, **count: bool | int) -> Result:
    words = WordsConfig(path=str(store.home.parent / "words.txt"))
    return run(graph(words, CountConfig(**count)), context(store, run=name), Options())  # type: ignore[arg-type]


def copied(store: Store, name: str) -> bytes:
    return store.backend.read(f"logs/{name}/0.jsonl")


def test_the_copy_has_all_events_of_a_run_and_what_its_stages_print(store: Store) -> None:
    toy(store, "one")
    assert copied(store, "one") == log_file(store.home, "one").read_bytes()
    toy(store, "two")
    assert copied(store, "two") == log_file(store.home, "two").read_bytes()
    assert store.backend.names("logs/two") == ["logs/two/0.jsonl"], "nothing ran, so nothing was printed"


@pytest.mark.parametrize("fails", [False, True])
def test_the_run_record_is_the_fold_of_the_log(store: Store, fails: bool) -> None:
    toy(store, "one", fail=fails)
    record, state = store.run("one") or {}, read_log(log_file(store.home, "one"))
    assert [stage["action"] for stage in record["stages"]] == ["ran"] * (3 if fails else 4)
    assert ("error" in record, record["outcome"]) == (fails, "failed" if fails else "completed")
    varying = {"seconds": 0, "ended": ""}  # the record is written just before the run's end
    assert record | varying == state.record() | varying


def test_a_failed_run_has_a_copy_that_says_why(store: Store) -> None:
    assert isinstance(toy(store, "one", fail=True).error, DataError)
    failed, ended = (json.loads(line) for line in copied(store, "one").splitlines()[-2:])
    assert (failed["event"], failed["stage"], failed["error"]["type"]) == ("stage_failed", "count", "DataError")
    assert (ended["outcome"], ended["error"]["stage"], ended["error"]["fix"]) == ("failed", "count", "mend row 3")


def test_a_store_that_refuses_the_copy_costs_the_copy_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = store.backend.replace

    def refuse(name: str, data: bytes, *, durable: bool = True) -> None:
        if name.startswith("logs/"):
            raise StoreError("403")
        replace(name, data, durable=durable)

    monkeypatch.setattr(store.backend, "replace", refuse)
    assert toy(store, "one").error is None and not store.backend.names("logs")


def test_a_record_that_can_not_be_written_does_not_hide_why_the_run_failed(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    inline_calls: None,  # noqa: F811
) -> None:
    def refuse(self: Store, run: str, document: object) -> None:
        raise StoreError("403")

    monkeypatch.setattr(Store, "write_run", refuse)
    assert isinstance(toy(store, "one", fail=True).error, DataError)
    assert isinstance(toy(store, "two").error, StoreError)


def test_gc_keeps_the_events_of_the_runs_that_it_keeps(store: Store) -> None:
    toy(store, "20250101T000000Z-000000")
    toy(store, "20260101T000000Z-000000", least=2)
    found = collect(store.backend, Policy(keep_last=1, grace=0.0), yes=True)
    assert found.swept.files["runs"] == 1 and found.swept.files["logs"] >= 1
    assert not store.backend.names("logs/20250101T000000Z-000000") and copied(store, "20260101T000000Z-000000")
