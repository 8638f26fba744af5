"""Sound recipes: a rehearsal finds no fault, and of the grid nothing to remark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.flows.rehearsal.sound import GRID, VARIANTS, Cell, write_cell, write_variant
from trnflow.flows.rehearsal.rehearse import Rehearsal, rehearse
from trnflow.flows.runner.context import open_context
from trnflow.tasks.load_data import NO_TEST_SPLIT

pytestmark = pytest.mark.slow

SAMPLE = (
    "emotions by name, balanced", "comments of any number of emotions", "answers as plain texts, end to end",
    "four devices, tensor parallel",
)  # fmt: skip
"""The others, and the grid, are nightly."""


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterable[None]:
    """One home for all, so that the processes that have imported torch serve all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRNFLOW_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rehearsed(overrides: Iterable[str]) -> Rehearsal:
    rehearsal = rehearse(open_context("mine.yaml", list(overrides)))
    assert rehearsal.fault is None, str(rehearsal.fault)
    assert rehearsal.killed, rehearsal.remarks
    return rehearsal


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.nightly) for name in VARIANTS]
)
def test_a_sound_recipe_on_real_data(folder: Path, shared: Path, name: str) -> None:
    """Real data has remarks."""
    rehearsed(write_variant(folder, shared, VARIANTS[name]))


@pytest.mark.nightly
@pytest.mark.parametrize("cell", GRID, ids=str)
def test_a_sound_recipe_of_the_grid(folder: Path, cell: Cell) -> None:
    rehearsal = rehearsed(write_cell(folder, cell))
    assert rehearsal.remarks == ([NO_TEST_SPLIT] if cell.split == "none" else [])
