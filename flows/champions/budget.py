"""The year's budget of judgements: how likely chance may win the next one, and which gain can win it."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import NamedTuple

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.services.schedules import YEAR, firings_per_year
from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.scores import is_less_better
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.promotion.compare import POWER, Comparison, smallest_gain
from trnflow.tasks.promotion.permutations import least_rows
from trnflow.tasks.promotion.settings import LOOKS, PromoteConfig
from trnflow.tasks.store.ledger import Ledger
from trnflow.tasks.store.ledger.entries import Entry

NOT_JUDGING = {"frozen_days", "keep_models"}
"""Settings of `promote` that decide no judgement."""
CLEAR_GAIN = 0.05
"""The gain of accuracy that should win a first look: where it can't, there are few frozen rows."""


class Look(NamedTuple):
    """What the next judgement gets of the budget.

    Attributes:
        number: Among the counted looks of 365 days, from 1; that of the first time for a comparison that is repeated.
        alpha: 0 if nothing is left.
        spent: The part of the year's budget that is spent, without this judgement.
        cost: The part that this one spends if it is counted; 0 for a comparison that is repeated.
    """

    number: int
    alpha: float
    spent: float
    cost: float

    def charge(self, found: Comparison) -> Comparison:
        """Return a comparison with what it costs. It wins nothing by a budget that is spent."""
        is_counted = found.can_win and self.alpha > 0
        spent, number = (self.spent + self.cost, self.number) if is_counted else (self.spent, 0)
        is_better = found.is_better and is_counted
        return found._replace(alpha=self.alpha, spent=spent, look=number, is_better=is_better)


class Compared(NamedTuple):
    """What a judgement compared, and by which settings. The same again has the same result."""

    challenger: str | None
    champion: str | None
    frozen: str | None
    metric: str
    settings: str


def settings_of(config: PromoteConfig) -> Meta:
    """Return the settings by which models are judged, as an entry of the ledger has them."""
    return config.model_dump(mode="json", exclude=NOT_JUDGING)


def changed_settings(before: Meta | None, config: PromoteConfig) -> list[str]:
    """Return the names of settings by which a model would be judged otherwise than before. before: of the ledger; None of
    an entry of an earlier version, which does not say."""
    if before is None:
        return []
    then = settings_of(PromoteConfig()) | before  # a setting that is new had its default
    return [f"promote.{name}" for name, value in settings_of(config).items() if then[name] != value]


def compared_by(
    challenger: str | None, champion: str | None, frozen: str | None, metric: str, settings: Meta | None
) -> Compared:
    return Compared(challenger, champion, frozen, metric, canonical(settings))


def next_look(config: PromoteConfig, ledger: Ledger, compared: Compared, today: date | None = None) -> Look:
    """Return what a judgement may spend. Reads the ledger's entries of a year, whatever their champion."""
    # days, not seconds: the nightly look of a year ago is past when tonight's begins a minute earlier
    first = (today or datetime.now(UTC).date()) - YEAR
    counted: dict[Compared, Meta] = {}
    for entry in ledger.entries():
        comparison = entry["comparison"]
        if comparison and _is_counted(comparison) and datetime.fromisoformat(entry["created"]).date() > first:
            counted[_compared(entry, comparison)] = comparison
    budget = 1.0 - config.confidence
    spent = sum(comparison["alpha"] for comparison in counted.values())
    if (known := counted.get(compared)) is not None:
        return Look(known.get("look") or len(counted), known["alpha"], spent / budget, 0.0)
    number = len(counted) + 1
    # less is left than the look's share only where settings changed during the year
    alpha = max(min(config.share(number), budget - spent), 0.0)
    return Look(number, alpha, spent / budget, alpha / budget)


def _is_counted(comparison: Meta) -> bool:
    """Return whether a comparison could win. Entries of earlier versions say only how many rows differ."""
    alpha: float = comparison.get("alpha") or 0.0
    return alpha > 0 and bool(comparison.get("can_win", comparison.get("differing", math.inf) >= least_rows(alpha)))


def _compared(entry: Entry, comparison: Meta) -> Compared:
    champion = entry["replaces"] or entry["champion"]
    return compared_by(entry["challenger"], champion, entry["frozen"], comparison["metric"], entry["settings"])


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


class Promise(NamedTuple):
    """Which gain can win on so many frozen rows. text: a sentence, "" where nothing is known; is_few: whether only a large
    gain wins a first look; the text then says what helps."""

    text: str
    is_few: bool = False


def promise(recipe: Recipe, rows: int, memo: Memo) -> Promise:
    """Return the smallest gain of accuracy that can win on so many frozen rows."""
    config, origin = looks_of(recipe, memo)
    first, last = config.share(1), config.share(config.looks_per_year or LOOKS)
    more = f"add rows to the test split, then `trnflow freeze {recipe.name}`"
    if rows < (least := least_rows(first)):
        return Promise(f"{rows} frozen rows are too few for any challenger to win ({least} at least): {more}", True)
    if not FORMATS[recipe.format.task].one_class:
        return Promise("")
    margin = 0.0 if config.metric and is_less_better(config.metric) else config.margin
    gain, later = (smallest_gain(rows, share, margin) for share in (first, last))
    given = f"{config.looks_per_year} comparisons a year by {origin}"
    if gain is None:
        return Promise(f"on {rows} frozen rows hardly any better model is promoted ({given}): {more}", True)
    last_one = f", {100 * later:.1f} points better at the last" if later else ""
    said = (
        f"on {rows} frozen rows only a model {100 * gain:.1f} points of accuracy better is promoted ({POWER:.0%} of the time "
        f"at the first of {given}{last_one})"
    )
    if gain <= CLEAR_GAIN:
        return Promise(said)
    counts = range(50, 10_001, 50)
    needed = next((rows for rows in counts if (smallest_gain(rows, first, margin) or 1.0) <= CLEAR_GAIN), None)
    goal = f"with {needed:,} frozen rows {100 * CLEAR_GAIN:.0f} points are enough: " if needed else ""
    return Promise(f"{said}; {goal}{more}", True)
