"""Where a command about past runs looks, and what it says where there is nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from trnflow.flows.cli import past_store
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store.location import store_option


def test_the_newest_run_s_store_is_named_where_there_is_no_default_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    monkeypatch.setattr(past_store, "written_runs", lambda home: ["20260101T1", "20260301T1", "20260201T1"])
    monkeypatch.setattr(past_store, "read_log", lambda file: SimpleNamespace(store=f"/my stores/{file.parent.name}"))
    with pytest.raises(ConfigError, match="the newest run here is in /my stores/20260301T1") as error:
        past_store.past_store(None)
    assert error.value.fix.startswith("add --store '/my stores/20260301T1'")


def test_a_store_s_option_can_be_pasted_into_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    assert store_option(str(tmp_path / "store"), tmp_path) == ""
    assert store_option("/my store", tmp_path) == " --store '/my store'"
