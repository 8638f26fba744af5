"""The year's budget of judgements, counted in a real ledger."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from trnflow.flows.champions.budget import next_look
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import NewEntry

TODAY = date(2026, 11, 25)
CONFIG = PromoteConfig(looks_per_year=4)


def judge(store: Store, challenger: str, day: date, frozen: str = "f1") -> float:
    """Add a judgement that keeps the champion; return its alpha."""
    ledger = read_ledger(store, "tiny")
    look = next_look(CONFIG, ledger, (challenger, "c", frozen, "accuracy"), day)
    entry = NewEntry(
        outcome="kept", by="retrain", why="", challenger=challenger, champion="c", frozen=frozen,
        comparison={"metric": "accuracy", "alpha": look.alpha, "spent": look.spent}, created=f"{day}T03:00:00+00:00",
    )  # fmt: skip
    assert append_ledger(store, "tiny", entry, ledger.number) is not None
    return look.alpha


def test_no_year_spends_more_than_its_budget(store: Store) -> None:
    """Two models a month for two years: each window of 365 days has at most four judgements that could be won."""
    days = [TODAY + timedelta(days=15 * number) for number in range(48)]
    alphas = [judge(store, f"m{number}", day) for number, day in enumerate(days)]
    windows = [sum(a for a, day in zip(alphas, days, strict=True) if 0 <= (day - first).days < 365) for first in days]
    assert max(windows) == pytest.approx(0.05) and alphas[:5] == [pytest.approx(0.0125)] * 4 + [0]
    assert len([alpha for alpha in alphas if alpha]) == 8


def test_a_repeated_comparison_costs_nothing_and_new_frozen_rows_a_look(store: Store) -> None:
    for _ in range(6):
        assert judge(store, "m", TODAY) == pytest.approx(0.0125)
    rolled_back = NewEntry(outcome="rolled back", by="rollback", why="", champion="c")
    assert append_ledger(store, "tiny", rolled_back, read_ledger(store, "tiny").number) is not None
    assert [judge(store, "m", TODAY, f"f{number}") for number in range(2, 6)] == [pytest.approx(0.0125)] * 3 + [0]
    assert next_look(CONFIG, read_ledger(store, "tiny"), ("n", "c", "f1", "accuracy"), TODAY).spent == pytest.approx(1)
