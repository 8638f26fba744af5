"""The first line: the main metric of model and baseline."""

from __future__ import annotations

from collections.abc import Sequence

from trnflow.tasks.evaluation.scores import accuracy
from trnflow.tasks.evaluation.verdicts.comparison import NAMES, Compared, main_metrics
from trnflow.tasks.evaluation.verdicts.facts import Facts, figure

FEW = 100
"""Fewer evaluated rows are called few."""
WIDE = 0.1
"""The interval is shown where it is wider than this share of the metric: 200 rows of accuracy 0.85."""


def headline(facts: Facts, beside: Sequence[Compared]) -> str:
    """Return the main metric, its interval where the rows leave it wide, and what baselines have."""
    name = beside[0].metric if beside else next(each for each in main_metrics(facts) if each in facts.report["metrics"])
    value = facts.report["metrics"][name]
    ends = facts.report["intervals"].get(name)
    between = f" ({figure(ends[0])} to {figure(ends[1])})" if ends and _is_wide(value, ends) else ""
    parts = [_beside(each, name) for each in beside]
    if not beside and name == accuracy.name and "majority" in facts.report:
        parts = [f"always saying the most frequent class has {figure(facts.report['majority'][name])}"]
    return f"{name} {figure(value)}{between} on {_where(facts)}{''.join(f'; {each}' for each in parts)}"


def _beside(each: Compared, name: str) -> str:
    """Return a baseline's figure. name: of the metric that the line begins with."""
    other = "" if each.metric == name else f"its {each.metric} is {figure(each.model)}, and "
    return f"{other}{NAMES[each.name]} has {figure(each.baseline)}"


def _where(facts: Facts) -> str:
    where = f"{facts.count:,} rows of {facts.split}"
    if facts.split != facts.report["asked"]:
        where += ", for there is no test split, and training may have watched validation"
    return where


def _is_wide(value: float, ends: Sequence[float]) -> bool:
    return ends[1] - ends[0] > WIDE * abs(value)


def few_rows(facts: Facts, beside: Sequence[Compared]) -> str | None:
    name = beside[0].metric if beside else main_metrics(facts)[0]
    ends = facts.report["intervals"].get(name)
    if facts.count >= FEW or "tokens" in facts.report or not ends or not _is_wide(1.0, ends):
        return None
    return (
        f"{facts.count:,} rows of {facts.split} are few: on other rows {name} may be {figure(ends[0])} or "
        f"{figure(ends[1])}; evaluate on more (data.split)"
    )
