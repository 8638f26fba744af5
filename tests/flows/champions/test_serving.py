"""How a command names the champion."""

from __future__ import annotations

import pytest

from trnflow.flows.champions.serving import champion_name


@pytest.mark.parametrize(
    ("recipe", "name"), [("mine", "mine@champion"), ("my tickets.yaml", "'my tickets.yaml@champion'")]
)
def test_a_name_can_be_pasted_into_a_shell(recipe: str, name: str) -> None:
    assert champion_name(recipe) == name
