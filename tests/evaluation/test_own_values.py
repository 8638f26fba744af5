"""What the user's own metrics return has to be the same in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trnflow.tasks.errors import CodeError
from trnflow.tasks.evaluation import own_metrics

HERE = {"cost": 1.0}


@pytest.mark.parametrize(
    ("elsewhere", "told"),
    [
        (HERE, None),
        ({"cost": 2.0}, "cost is 1.0, and 2.0 in another process"),
        ({}, "cost is 1.0, and None in another process"),
        ({**HERE, "of today": 2.0}, "of today is None, and 2.0 in another process"),
    ],
)
def test_a_metric_that_only_one_process_returns_is_refused(
    elsewhere: dict[str, float], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(function: str, arguments: Any, *_: Any) -> dict[str, float]:
        return elsewhere if arguments["elsewhere"] else HERE

    monkeypatch.setattr(own_metrics, "call_own", call)
    if told is None:
        assert own_metrics.called_twice("m:f", {"hook": "evaluate.metrics"}, tmp_path) == HERE
    else:
        with pytest.raises(CodeError, match=told):
            own_metrics.called_twice("m:f", {"hook": "evaluate.metrics"}, tmp_path)
