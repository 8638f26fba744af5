"""Where a command about past runs looks, and what it says where there is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trnflow.flows.cli.past_store import past_store
from trnflow.tasks.events.retention import FILE, run_folder
from trnflow.tasks.store import Store
from trnflow.tasks.store.location import store_option


def test_where_there_is_no_default_store_the_newest_run_s_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    for run in ("20260101T1", "20260301T1", "20260201T1"):
        log = run_folder(tmp_path, run) / FILE
        log.parent.mkdir(parents=True)
        log.write_text(json.dumps({"recipe": "tickets", "store": str(tmp_path / run)}) + "\n")
    Store(str(tmp_path / "20260301T1"), tmp_path).prepare()
    assert past_store(None).root == str(tmp_path / "20260301T1")
    assert capsys.readouterr().err == f"store: {tmp_path / '20260301T1'}\n"


def test_a_store_s_option_can_be_pasted_into_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    assert store_option(str(tmp_path / "store"), tmp_path) == ""
    assert store_option("/my store", tmp_path) == " --store '/my store'"
