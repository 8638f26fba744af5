"""Kept answers of outside programs stand for them while lock, script and all that they read are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients import answers
from tests.clients.answers import HOW, KEEP, LIVE, Question


def asked(
    base: Path, lock: str = "trl==1", script: str = "print(1)", text: str = "a", weights: bytes = b"w"
) -> Question:
    """Ask about a folder with weights that a JSON file names, in a base as each run of the tests has its own."""
    folder = base / "model"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_bytes(weights)
    (base / "given.json").write_text(json.dumps({"folder": str(folder), "text": text}))
    return Question("trl", [lock], script, [str(base / "given.json"), str(base / "none yet")], {}, [base])


@pytest.fixture(autouse=True)
def keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "FOLDER", tmp_path / "answers")
    monkeypatch.setenv(HOW, KEEP)
    base = tmp_path / "one"
    asked(base).keep({str(base / "model"): [0.1, "é"], "other": str(base / "given.json")})
    monkeypatch.delenv(HOW)


def test_an_answer_is_kept_for_any_folder_of_the_same_bytes(tmp_path: Path) -> None:
    base = tmp_path / "two"
    assert asked(base).kept() == {str(base / "model"): [0.1, "é"], "other": str(base / "given.json")}


@pytest.mark.parametrize(
    "change", [{"lock": "trl==2"}, {"script": "print(2)"}, {"text": "b"}, {"weights": b"v"}], ids=str
)
def test_a_change_of_anything_asks_the_program(change: dict[str, str], tmp_path: Path) -> None:
    assert asked(tmp_path / "two", **change).kept() is None


def test_a_file_more_asks_the_program(tmp_path: Path) -> None:
    asked(tmp_path / "two")
    (tmp_path / "two/model/adapter").touch()
    assert asked(tmp_path / "two").kept() is None


def test_nightly_asks_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOW, LIVE)
    assert asked(tmp_path / "two").kept() is None
    asked(tmp_path / "two").keep("another")
    monkeypatch.delenv(HOW)
    assert asked(tmp_path / "two").kept() != "another"
