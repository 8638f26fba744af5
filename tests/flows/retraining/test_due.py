"""When a change is announced again, and how a retrain is started."""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import UTC, datetime, timedelta

import pytest

from trnflow.flows.cli.model.watch_command import _retrain
from trnflow.flows.retraining.ended import Ended
from trnflow.flows.retraining.watch import WatchState, _due

NOW = datetime.now(UTC).replace(microsecond=0)


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("failed", "told", "last", "due"),
    [
        (None, 0, 0.0, None),  # it was never announced
        (None, 1, -50.0, 50.0),
        (None, 3, -50.0, 350.0),  # each time twice as long
        (None, 9, -50.0, 3550.0),  # an hour at most
        ((-10.0, 1), 1, -50.0, 90.0),  # the later of both
        ((-200.0, 1), 2, -50.0, 150.0),
        ((-10.0, 3), 0, 0.0, 390.0),
        ((86_400.0, 1), 1, -50.0, 50.0),  # a clock that was ahead holds nothing up
    ],
)
def test_an_announcement_and_a_failure_are_both_waited_for(
    failed: tuple[float, int] | None, told: int, last: float, due: float | None
) -> None:
    ended = Ended("failed", at(failed[0]), "d", None, failed[1]) if failed else None
    seen = WatchState("d", 0.0, told, NOW.timestamp() + last)
    assert _due(ended, seen, 100.0) == (0.0 if due is None else pytest.approx(NOW.timestamp() + due))


def test_a_retrain_has_all_that_the_watch_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/echo")  # it prints what it is given
    for offline in (True, False):
        _retrain(Namespace(recipe="tiny.yaml", offline=offline, overrides=["train.epochs=2", "data.limit=5"]))
    given = capsys.readouterr().err.splitlines()
    assert given == [
        "-P -m trnflow retrain tiny.yaml --offline train.epochs=2 data.limit=5",
        "-P -m trnflow retrain tiny.yaml train.epochs=2 data.limit=5",
    ]
