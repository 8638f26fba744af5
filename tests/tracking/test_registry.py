"""Which champion a registry shows, without a registry: `tests/flows/champions/test_mirror` has MLflow's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.tasks.tracking import registry

EVENT: Any = {
    "recipe": "tiny", "series": "2026-01-02 aaaa", "number": 3, "created": "2026-01-05", "why": "better", "task": "x",
    "champion": f"sha256:{'a' * 64}", "store": "s3://bucket/store", "metrics": {"f1": 0.5},
}  # fmt: skip


@pytest.mark.parametrize(
    ("series", "number", "created", "older"),
    [
        ("2026-01-02 aaaa", "3", "2026-01-05", False),
        ("2026-01-02 aaaa", "4", "2026-01-01", True),  # of one series numbers decide, whatever clocks said
        ("2026-01-02 aaaa", "2", "2026-01-09", False),
        ("2026-01-02 aaaa", "10", "2026-01-01", True),
        ("2026-01-01 bbbb", "9", "2026-01-04", False),
        ("2026-01-01 bbbb", "1", "2026-01-06", True),
    ],
)
def test_of_two_series_the_one_with_the_newer_champion_is_shown(
    series: str, number: str, created: str, older: bool
) -> None:
    shown = {registry.SERIES: series, registry.NUMBER: number, registry.CREATED: created}
    assert registry._is_older(EVENT, shown) is older
    assert registry._is_older(EVENT, {}) is False


@pytest.mark.parametrize("complete", [[True, False], [False, True]])
def test_of_several_models_of_an_artifact_the_complete_one_is_taken(complete: list[bool]) -> None:
    models: list[Any] = [SimpleNamespace(tags={registry.COMPLETE: "2"} if one else {}, done=one) for one in complete]
    client: Any = SimpleNamespace(search_logged_models=lambda experiments, filter_string: models)
    found: Any = registry._found(client, "1", EVENT["champion"])
    assert found.done


def test_a_description_shows_no_password_of_the_store() -> None:
    told = registry.describe({**EVENT, "store": "s3://KEY:hunter2@bucket/store"})
    assert "hunter2" not in told and "@bucket/store" in told and "f1 0.5" in told
