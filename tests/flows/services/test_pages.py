"""The lines that name the pages of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.flows.recipes.sections import TrackingConfig
from trnflow.flows.services import pages as module


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://me:hunter2@host:4200/api", "prefect: http://***@host:4200"),
        (None, "prefect: `trnflow up` starts a local server"),
    ],
)
def test_prefect_s_page_is_named_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, said: str
) -> None:
    monkeypatch.setattr(module, "api_url", lambda home: url)
    assert module.pages(tmp_path, TrackingConfig(enabled=False)) == [said, "mlflow:  off (tracking.enabled)"]
