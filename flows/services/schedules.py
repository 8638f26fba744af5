"""How often the schedules of a prefect.yaml retrain a recipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trnflow.flows.recipes.files import read_tree
from trnflow.flows.recipes.names import FILES
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.services.deployed_recipes import PREFECT_FILE, case_of, is_template, schedules_of
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.hash_cache import Memo, sha256_bytes
from trnflow.tasks.promotion.settings import MOST_LOOKS

if TYPE_CHECKING:
    from prefect.types import DateTime

YEAR = timedelta(days=365)
# a fixed beginning: the same schedule has the same number of firings on each day
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
VERSION = "1"
"""Of remembered counts: raise it when a schedule's count changes."""
DATES = 1000
"""The most dates that Prefect computes at once."""


def firings_per_year(recipe: Recipe, memo: Memo) -> tuple[int, Path] | None:
    """Return how often a recipe is retrained in a year, MOST_LOOKS at most, and the prefect.yaml that says so; None if
    none has a schedule.

    The file is looked for beside the recipe's own, in the folders above it, then in the working directory.
    """
    folders = [] if recipe.own_folder is None else [recipe.own_folder, *recipe.own_folder.parents]
    for folder in dict.fromkeys([*folders, Path.cwd()]):
        count = sum(_known_in_a_year(schedule, memo) for schedule in _of_recipe(folder, recipe.name))
        if count:
            return min(count, MOST_LOOKS), folder / PREFECT_FILE
    return None


def dates_of(schedule: Meta, start: datetime) -> list[DateTime]:
    """Return a schedule's next 1000 dates. schedule: with `cron`, `interval` (in seconds, or a timedelta) or `rrule`.
    Raises ValueError."""
    # here, since it takes each command 12 ms
    import asyncio

    from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

    kinds: dict[str, type[CronSchedule | IntervalSchedule | RRuleSchedule]]
    kinds = {"cron": CronSchedule, "interval": IntervalSchedule, "rrule": RRuleSchedule}
    kind = next((kind for name, kind in kinds.items() if schedule.get(name) is not None), None)
    if kind is None:
        return []
    if str(rule := schedule.get("rrule")).startswith("{"):  # as `prefect deploy` reads it
        schedule = {**schedule, **json.loads(str(rule))}
    document = {name: value for name, value in schedule.items() if name in kind.model_fields and value is not None}
    coroutine = kind.model_validate(document).get_dates(DATES, start=start)
    with ThreadPoolExecutor(1) as thread:  # the caller's may have a running event loop
        dates: list[DateTime] = thread.submit(asyncio.run, coroutine).result()
    return dates


def _known_in_a_year(schedule: Meta, memo: Memo) -> int:
    # importing Prefect's schedules takes 0.8 s, four times as long as a plan
    name = sha256_bytes(json.dumps(schedule, sort_keys=True, default=str).encode())  # it may hold secrets
    known: int | None = memo.get("firings a year", name, VERSION)
    if known is None:
        known = _in_a_year(schedule)
        memo.put("firings a year", name, VERSION, known)
        memo.save()
    return known


def _in_a_year(schedule: Meta) -> int:
    """Return the number of dates in the 365 days from the first on; 0 for what is no schedule."""
    try:
        dates = block = dates_of(schedule, BEGIN)
        while len(block) == DATES and len(dates) < MOST_LOOKS and block[-1] - dates[0] < YEAR:
            block = dates_of(schedule, block[-1] + timedelta(seconds=1))
            dates = dates + block
    except ValueError:  # Prefect refuses it, too
        return 0
    return sum(date - dates[0] < YEAR for date in dates)


def _of_recipe(folder: Path, name: str) -> Iterator[Meta]:
    """Yield the active schedules of a folder's prefect.yaml that retrain a recipe."""
    for schedule, parameters in schedules_of(_declared(folder / PREFECT_FILE), "retrain"):
        recipe, *overrides = case_of(parameters)
        if is_template((recipe, *overrides)):
            continue
        try:
            tree = read_tree(str(folder / recipe) if recipe.endswith(FILES) else recipe, Recipe)
            if tree.with_overrides(overrides).settings()["name"] == name:
                yield schedule
        except ConfigError:  # `trnflow deploy` says so
            continue


def _declared(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # none, or none that Prefect can read
        return None
