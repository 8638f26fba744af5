"""How Prefect's flows end: what shows as cancelled, and what an error that Prefect keeps may hold."""

from __future__ import annotations

from typing import NoReturn

import pytest

from trnflow.flows.deployments import _ended, _raisable
from trnflow.tasks.errors import DataError, Interrupted


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
