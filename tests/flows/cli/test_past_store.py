"""Where a command about past runs looks, and what it says where there is nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trnflow.flows.cli.past_store import past_run, past_store
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events.retention import FILE, PREVIEW, run_folder
from trnflow.tasks.store import Store
from trnflow.tasks.store.location import store_option


def test_where_there_is_no_default_store_the_newest_run_s_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    for run in ("20260101T1", "20260301T1", "20260201T1"):
        begin(tmp_path, run, tmp_path / run).prepare()
    assert past_store(None).root == str(tmp_path / "20260301T1")
    assert capsys.readouterr().err == f"store: {tmp_path / '20260301T1'}\n"


def test_a_store_that_is_gone_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's is removed with its folder, and its log stays."""
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    begin(tmp_path, "20260101T1", tmp_path / "there").prepare()
    begin(tmp_path, "20260201T1", tmp_path / "gone")
    assert past_store(None).root == past_store(None, "tickets").root == str(tmp_path / "there")
    begin(tmp_path, "20260102T1", tmp_path / "store").prepare()
    assert past_store(None, "tickets").root == past_store(None, "20260201T1").root == str(tmp_path / "store")


def begin(home: Path, run: str, root: Path) -> Store:
    """Write the first line of a run's log, and return its store, which is not made yet."""
    log = run_folder(home, run) / FILE
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps({"recipe": "tickets", "store": str(root)}) + "\n")
    return Store(str(root), home)


def test_a_home_that_was_copied_reads_its_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    first, copy = tmp_path / "first", tmp_path / "copy"
    store, run = Store(str(first / "store"), first), "20260101T000000Z-abcdef"
    store.prepare()
    store.write_run(run, {"recipe": "tickets", "outcome": "completed", "stages": []})
    log = run_folder(first, run) / FILE
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps({"recipe": "tickets", "store": store.root}) + "\n")
    shutil.copytree(first, copy)
    monkeypatch.setenv("TRNFLOW_HOME", str(copy))
    assert past_store(None, "tickets").root == str(copy / "store")


def test_a_store_s_option_can_be_pasted_into_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    assert store_option(str(tmp_path / "store"), tmp_path) == ""
    assert store_option("/my store", tmp_path) == " --store '/my store'"


def test_a_recipe_s_newest_run_is_no_preview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path))
    runs = ("20260101T000000Z-abcdef", "20260102T000000Z-abcdef", f"20260103T000000Z-abcdef{PREVIEW}")
    for run in runs:
        store = begin(tmp_path, run, tmp_path / "store")
    store.prepare()
    assert past_run(store, "tickets", runs) == runs[1]
    with pytest.raises(ConfigError, match="this store has no run of tickets"):
        past_run(store, "tickets", runs[2:])
