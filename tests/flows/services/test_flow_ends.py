"""How Prefect's flows end: what is refused, what shows as cancelled, and what an error that Prefect keeps may hold."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from tests.flows.champions.conftest import write_tiny
from trnflow.flows.deployments import _ended, _raisable, _refuse_code_elsewhere
from trnflow.flows.recipes.recipe import load
from trnflow.tasks.errors import ConfigError, DataError, Interrupted


def test_own_code_outside_the_deployments_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a flow run chooses the recipe's path."""
    for name in ("deployed", "other"):
        (tmp_path / name).mkdir()
        write_tiny(tmp_path / name)
        recipe = (tmp_path / name / "tiny.yaml").read_text()
        own = recipe.replace("task: classification", "task: classification, make: 'formats:make'")
        (tmp_path / name / "own.yaml").write_text(own)
        (tmp_path / name / "formats.py").write_text("def make(row):\n    return row['text']\n")
    monkeypatch.chdir(tmp_path / "deployed")
    _refuse_code_elsewhere(load("own.yaml"))
    _refuse_code_elsewhere(load("../other/tiny.yaml"))
    with pytest.raises(
        ConfigError, match=r"format\.make: formats:make lies in .*other, outside the deployment's folder"
    ):
        _refuse_code_elsewhere(load("../other/own.yaml"))


def test_an_interrupted_flow_is_cancelled_and_another_error_fails_it() -> None:
    state = _ended(Interrupted("interrupted", "again"))
    assert state is not None and state.is_cancelled() and state.message == "interrupted"
    assert _ended(None) is None
    with pytest.raises(DataError, match="row 3"):
        _ended(DataError("row 3 is bad", "mend it"))


def test_an_error_that_prefect_keeps_holds_no_secret_nor_does_its_cause() -> None:
    def fail() -> NoReturn:
        try:
            raise ValueError("https://ann:pa55word@rows.example")
        except ValueError as error:
            raise DataError("https://ann:pa55word@rows.example does not answer", "wait") from error

    with pytest.raises(DataError, match="does not answer") as caught:
        _raisable(fail)
    assert "pa55word" not in f"{caught.value} {caught.value.__cause__} {caught.value.details}"
