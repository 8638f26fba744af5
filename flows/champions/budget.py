"""The year's budget of judgements: how likely chance may win the next one, and which gain can win it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import NamedTuple

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.services.schedules import YEAR, firings_per_year
from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.scores import is_less_better
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.promotion.bootstrap import DIFFERING, POWER, least_rows, smallest_gain
from trnflow.tasks.promotion.settings import LOOKS, PromoteConfig
from trnflow.tasks.store.ledger import Ledger
from trnflow.tasks.store.ledger.entries import Entry


class Look(NamedTuple):
    """What the next judgement gets of the budget. alpha: 0 if too little is left; spent: the share of the year's budget
    that is spent, this judgement included."""

    alpha: float
    spent: float


def next_look(config: PromoteConfig, ledger: Ledger, pair: tuple[str | None, ...], today: date | None = None) -> Look:
    """Return what a judgement may spend. pair: as `_compared` gives it. Reads the ledger's entries of a year.

    A comparison that is repeated, of the same models on the same rows, has the same result and costs nothing.
    """
    # days, not seconds: the nightly look of a year ago is past when tonight's begins a minute earlier
    first = (today or datetime.now(UTC).date()) - YEAR
    spent: dict[tuple[str | None, ...], float] = {}
    for entry in ledger.entries():
        compared = entry["comparison"]
        if compared and compared.get("alpha") and datetime.fromisoformat(entry["created"]).date() > first:
            spent[_compared(entry, compared)] = compared["alpha"]
    budget = 1.0 - config.confidence
    known = spent.get(pair)
    if known is None and sum(spent.values()) + config.alpha > budget * (1.0 + 1e-9):
        return Look(0.0, sum(spent.values()) / budget)
    spent[pair] = known or config.alpha
    return Look(spent[pair], sum(spent.values()) / budget)


def _compared(entry: Entry, comparison: Meta) -> tuple[str | None, ...]:
    """Return what was compared: challenger, champion, frozen rows, metric."""
    return entry["challenger"], entry["replaces"] or entry["champion"], entry["frozen"], comparison["metric"]


def looks_of(recipe: Recipe, memo: Memo) -> tuple[PromoteConfig, str]:
    """Return the section `promote` with `looks_per_year` filled in, and where that number is from: the setting decides,
    else the schedule, however the command was started."""
    config = recipe.judging
    if config.looks_per_year is not None:
        return config, "promote.looks_per_year"
    scheduled = firings_per_year(recipe, memo)
    number, origin = scheduled or (LOOKS, "the default, since no schedule retrains it")
    filled = config.model_copy(update={"looks_per_year": number})
    return filled, f"the schedule in {origin}" if scheduled else str(origin)


def promise(recipe: Recipe, rows: int, memo: Memo) -> str:
    """Return a sentence on the smallest gain that can win on so many frozen rows, "" for a language model."""
    if not FORMATS[recipe.format.task].one_class:
        return ""
    config, origin = looks_of(recipe, memo)
    margin = 0.0 if config.metric and is_less_better(config.metric) else config.margin
    gain = smallest_gain(rows, config.alpha, margin)
    given = f"{config.looks_per_year} looks a year by {origin}, {DIFFERING:.0%} of the rows judged differently"
    if gain is None:
        least = int(-(-least_rows(config.alpha) // DIFFERING))
        fix = f"freeze more ({least} without a margin), or lower promote.looks_per_year"
        return f"{rows} frozen rows are too few for any similar challenger to win ({given}): {fix}"
    wins = f"a challenger that gains {100 * gain:.1f} points of accuracy wins {POWER:.0%} of its looks"
    return f"on {rows} frozen rows {wins} ({given})"
