"""Planted faults: a rehearsal names each, with a fix, before a stage that costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.rehearsal.fault_table import is_named, ran, rehearsed
from tests.flows.rehearsal.faults import FAULTS

QUICK = (
    "no test split", "no validation for keep_best", "a rule on no column", "scores of 0 to 100", "an id as the class",
    "two classes of one row", "an empty text", "identifiers as the text", "a text column misspelled", "UTF-16",
    "a file without rows", "no chat template", "more tokens than positions", "a store that is a file",
)  # fmt: skip
"""Those that a plan or the first rows show."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; a home of its own in it, without a variable, shares the processes that have imported torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRNFLOW_HOME", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def tier(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Quick faults run always, the first of every other number in the slow tests, the rest nightly."""
    if name in QUICK:
        return ()
    number = FAULTS[name].number
    alike = [other for other in FAULTS if FAULTS[other].number == number]
    first = alike[0] == name and not any(other in QUICK for other in alike)
    return (pytest.mark.slow,) if first else (pytest.mark.slow, pytest.mark.nightly)


@pytest.mark.parametrize("name", [pytest.param(name, marks=tier(name)) for name in FAULTS])
def test_a_planted_fault_is_named(folder: Path, name: str) -> None:
    fault = FAULTS[name]
    rehearsal = rehearsed(folder, fault)
    assert is_named(fault, rehearsal), rehearsal


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_breaks_a_real_run(folder: Path, name: str) -> None:
    """Or the run ends well, and what it made shows the harm."""
    done = ran(folder, name)
    assert done.error is not None or done.harmed


def test_every_kind_has_a_variant() -> None:
    assert {fault.number for fault in FAULTS.values()} == {*range(1, 31)}
    assert len(FAULTS) >= 60


@pytest.mark.slow
def test_a_disk_too_small_for_checkpoints_stops_a_run_before_it_trains(folder: Path) -> None:
    done = ran(folder, "a disk too small")
    assert "free on the disk" in str(done.error) and done.seconds == 0.0
