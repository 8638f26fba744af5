"""What a stage's settings are in keys, and which numbers are none."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import ValidationError

from trnflow.tasks.config import GRAPH, NOT_KEYED, WHEN_SET, Positive, StageConfig, graph_params, keyed_params


class Inner(StageConfig):
    rate: Positive = 0.5
    threads: Annotated[int, NOT_KEYED] = 1
    newer: Annotated[str, WHEN_SET] = "as before"


class Outer(StageConfig):
    inner: Inner = Inner()
    parts: tuple[Inner, ...] = ()
    width: Annotated[int, GRAPH] = 8
    depth: Annotated[int, GRAPH, WHEN_SET] = 0
    other: float = 0.0


def test_a_key_has_what_can_change_the_result_and_a_newer_setting_where_it_is_set() -> None:
    default = {"inner": {"rate": 0.5}, "parts": [], "width": 8, "other": 0.0}
    assert keyed_params(Outer()) == keyed_params(Outer(inner=Inner(threads=4))) == default
    changed = Outer(parts=(Inner(newer="otherwise", threads=2),), depth=3)
    assert keyed_params(changed) == default | {"parts": [{"rate": 0.5, "newer": "otherwise"}], "depth": 3}
    assert graph_params(Outer()) == {"width": 8} and graph_params(changed) == {"depth": 3, "width": 8}


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_no_setting(number: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        Outer(other=number)
    with pytest.raises(ValidationError):
        Outer.model_validate({"inner": {"rate": number}})


def test_settings_can_not_be_changed_and_unknown_ones_are_refused() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Outer().other = 1.0
    with pytest.raises(ValidationError, match="Extra inputs"):
        Outer.model_validate({"wdth": 9})
