"""Which rank's error is reported when several fail."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trnflow.tasks.errors import DataError, ProcessFailed
from trnflow.tasks.launch.ranks import _outcome, leave


def test_of_errors_that_are_nobody_s_the_earliest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, at in ((0, 3.0), (1, 2.0), (2, 1.0)):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        leave(rank, tmp_path, {"error": ProcessFailed(f"broken {rank}", "").to_json(), "details": ""})
    assert _outcome([1, 1, 1], [], tmp_path)["error"]["message"] == "rank 2 of 3: broken 2"
    leave(1, tmp_path, {"error": DataError("row 3", "").to_json(), "details": ""})
    assert _outcome([1, 1, 1], [], tmp_path)["error"]["message"] == "rank 1 of 3: row 3"
