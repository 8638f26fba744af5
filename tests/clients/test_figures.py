"""docs/clients.md has the figures that were measured, of the versions that are locked."""

from __future__ import annotations

from pathlib import Path

from tests.clients import figures
from tests.conftest import PROJECT


def test_the_page_has_the_measured_table() -> None:
    assert figures.rows() and f"\n{figures.table()}\n" in (PROJECT / "docs/clients.md").read_text()


def test_the_figures_are_of_the_locked_versions() -> None:
    locks = [file.read_text() for file in Path(__file__).parent.glob("*.lock")]
    locks.append((PROJECT / "requirements.lock").read_text())
    pins = {line for text in locks for line in text.splitlines()}
    assert {str(row[0]).replace(" ", "==") for row in figures.rows()} <= pins
