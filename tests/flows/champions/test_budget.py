"""The year's budget of judgements, counted in a real ledger."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnflow.flows.champions.budget import changed_settings, compared_by, next_look, promise, settings_of
from trnflow.flows.champions.promote import describe
from trnflow.flows.recipes.recipe import load
from trnflow.tasks.artifact import Meta
from trnflow.tasks.promotion.compare import Comparison, smallest_gain
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import NOTHING, Entry, NewEntry, complete_entry

TODAY = date(2026, 11, 25)
CONFIG = PromoteConfig(looks_per_year=4)
YEAR = 365


def entry_of(
    ledger: Ledger, challenger: str, day: date, config: PromoteConfig, frozen: str = "f1", can_win: bool = True
) -> NewEntry:
    """A judgement that keeps the champion, as `promote` writes it."""
    chosen = settings_of(config)
    look = next_look(config, ledger, compared_by(challenger, "c", frozen, "accuracy", chosen), day)
    found = Comparison("accuracy", 0.5, 0.5, 0.0, -0.1, 0.1, 50, False, 20, look.alpha, can_win=can_win)
    return NewEntry(
        outcome="kept", by="retrain", why="", challenger=challenger, champion="c", frozen=frozen, settings=chosen,
        comparison=look.charge(found).to_json(), created=f"{day}T03:00:00+00:00",
    )  # fmt: skip


def judge(store: Store, challenger: str, day: date = TODAY, config: PromoteConfig = CONFIG, **more: Any) -> Meta:
    """Add a judgement; return its comparison."""
    ledger = read_ledger(store, "tiny")
    entry = append_ledger(store, "tiny", entry_of(ledger, challenger, day, config, **more), ledger.number)
    assert entry is not None and entry["comparison"] is not None
    return entry["comparison"]


def share(look: int, looks: int = 4) -> float:
    """The rule, by hand: half of 5 % for 1/2 + 1/6 + 1/12 + ... = 1, and half in equal parts."""
    return 0.025 / (look * (look + 1)) + (0.025 / looks if look <= looks else 0)


def test_the_first_looks_get_more_and_each_a_share(store: Store) -> None:
    found = [judge(store, f"m{number}") for number in range(7)]
    assert [one["alpha"] for one in found] == pytest.approx([share(look) for look in range(1, 8)])
    assert [one["look"] for one in found] == [1, 2, 3, 4, 5, 6, 7]
    assert (
        found[-1]["spent"] == pytest.approx(sum(share(look) for look in range(1, 8)) / 0.05) and found[-1]["spent"] < 1
    )
    assert sum(PromoteConfig().share(look) for look in range(1, 100_000)) == pytest.approx(0.05, rel=1e-4)


def test_a_look_that_could_not_win_is_free(store: Store) -> None:
    free = [judge(store, f"m{number}", can_win=False) for number in range(5)]
    assert [one["alpha"] for one in free] == pytest.approx([share(1)] * 5)
    assert {(one["look"], one["spent"]) for one in free} == {(0, 0.0)}
    assert (judge(store, "last")["look"], judge(store, "next")["look"]) == (1, 2)


def test_a_repeated_comparison_is_free_and_changed_settings_are_a_new_look(store: Store) -> None:
    for _ in range(3):
        assert judge(store, "m")["look"] == 1
    assert judge(store, "n")["look"] == 2
    assert [judge(store, "m")["alpha"], judge(store, "n")["alpha"]] == pytest.approx([share(1), share(2)])
    assert judge(store, "m", config=CONFIG.model_copy(update={"margin": 0.01}))["look"] == 3
    lower = judge(store, "m", config=CONFIG.model_copy(update={"confidence": 0.8}))
    assert lower["look"] == 4 and lower["alpha"] == pytest.approx(4 * share(4))
    assert judge(store, "m", frozen="f2")["alpha"] == 0, "that look has spent more than 0.05 allows"


def test_nothing_that_happens_to_a_recipe_begins_its_year_anew(store: Store) -> None:
    """Promotions by evidence and by force, a rollback, and new frozen rows."""
    judge(store, "m")
    forced = {"who": "a@b", "why": "it had to", "broke": []}
    for number, event in enumerate((
        NewEntry(outcome="promoted", by="retrain", why="", champion="d"),
        NewEntry(outcome="promoted", by="promote", why="", champion="e", forced=forced),
        NewEntry(outcome="rolled back", by="rollback", why="", champion="d"),
        NewEntry(outcome="frozen", by="freeze", why="", frozen="f9"),
    )):  # fmt: skip
        assert append_ledger(store, "tiny", event, read_ledger(store, "tiny").number) is not None
        assert judge(store, f"after {number}")["look"] == number + 2


def test_a_look_is_past_after_365_days(store: Store) -> None:
    judge(store, "m", TODAY - timedelta(days=YEAR))
    assert judge(store, "n", TODAY)["look"] == 1
    assert judge(store, "o", TODAY + timedelta(days=YEAR - 1))["look"] == 2


def test_entries_of_an_earlier_version_count_where_they_could_win(store: Store) -> None:
    for number, differing in enumerate((12, 13, 50)):
        compared = {"metric": "accuracy", "alpha": 0.05 / 365, "spent": 0.01, "differing": differing}
        old = NewEntry(outcome="kept", by="retrain", why="", challenger=f"m{number}", champion="c", comparison=compared)
        assert append_ledger(store, "tiny", old, read_ledger(store, "tiny").number) is not None
    assert judge(store, "new")["look"] == 3


@settings(max_examples=60, deadline=None)
@given(
    days=st.lists(st.integers(0, 900), min_size=1, max_size=60),
    looks=st.lists(st.sampled_from([1, 12, 365]), min_size=1, max_size=3),
    can_win=st.lists(st.booleans(), min_size=1, max_size=5),
    confidence=st.lists(st.sampled_from([0.8, 0.95]), min_size=1, max_size=2),
)
def test_no_365_days_spend_more_than_their_budget(
    days: list[int], looks: list[int], can_win: list[bool], confidence: list[float]
) -> None:
    """On any days, while settings change: the shares of any 365 days are at most the largest 1 - confidence of them."""
    entries: list[Entry] = []
    spent: list[tuple[date, float]] = []
    for number, day in enumerate(sorted(days)):
        chosen = {"looks_per_year": looks[number % len(looks)], "confidence": confidence[number % len(confidence)]}
        ledger, when = Ledger("tiny", [], lambda _: {}, entries), TODAY + timedelta(days=day)
        new = entry_of(ledger, f"m{number}", when, PromoteConfig(**chosen), can_win=can_win[number % len(can_win)])
        entries.append(complete_entry("tiny", number + 1, entries[-1]["stands"] if entries else NOTHING, new))
        assert new["comparison"] is not None
        spent.append((when, new["comparison"]["alpha"] * bool(new["comparison"]["look"])))
    most = 1 - min(confidence)
    for begin, _ in spent:
        assert sum(alpha for day, alpha in spent if 0 <= (day - begin).days < YEAR) <= most * (1 + 1e-9)


def test_settings_that_judge_are_named_when_they_change() -> None:
    before = settings_of(PromoteConfig(at_least={"f1_macro": 0.5}))
    assert changed_settings(before, PromoteConfig(at_least={"f1_macro": 0.5}, frozen_days=3, keep_models=9)) == []
    changed = PromoteConfig(at_least={"f1_macro": 0.4}, margin=0.1, seed=2)
    assert changed_settings(before, changed) == ["promote.margin", "promote.at_least", "promote.seed"]
    assert changed_settings(None, changed) == []
    del before["margin"]  # a version that had no such setting
    assert changed_settings(before, PromoteConfig(at_least={"f1_macro": 0.5})) == []


@pytest.mark.parametrize(("rows", "few"), [(5, True), (200, True), (20_000, False)])
def test_what_frozen_rows_promise_is_the_smallest_gain_of_a_first_and_of_a_last_look(
    store: Store, rows: int, few: bool
) -> None:
    found = promise(load("demo", ["promote.looks_per_year=12"]), rows, store.memo)
    config = PromoteConfig(looks_per_year=12)
    gains = [smallest_gain(rows, config.share(look), config.margin) for look in (1, 12)]
    assert found.is_few == few == ("then `trnflow freeze" in found.text)
    assert [f" {100 * gain:.1f} points " in found.text for gain in gains if gain] == [True] * sum(map(bool, gains))
    assert ("better at the last" in found.text) == all(gains)


@pytest.mark.parametrize(
    ("low", "high", "can_win", "said"),
    [
        (0.01, 0.2, True, "better than the champion on 600 frozen rows"),
        (-0.1, 0.1, True, "not surely better than the champion"),
        (-0.24, -0.1, True, "surely worse than the champion"),  # a night's data may be at fault
        (-0.24, -0.1, False, "not surely better (20 rows"),
    ],
)
def test_a_decision_says_how_sure_it_is(low: float, high: float, can_win: bool, said: str) -> None:
    middle = (low + high) / 2
    found = Comparison("accuracy", 0.7, 0.7 + middle, middle, low, high, 600, low > 0, 20, 1e-9, can_win=can_win)
    assert describe(found, False).startswith(said)
