"""How many judgements a year a prefect.yaml's schedules make: counted by Prefect's own dates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trnflow.flows.champions.budget import looks_of, promise
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.services.schedules import firings_per_year
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.promotion.settings import MOST_LOOKS

NIGHTLY = '{cron: "0 3 * * *", timezone: Europe/Berlin}'
RECIPE = "extends: classify\ndata: {source: rows.csv}\n"
DEPLOYMENT = """
- name: NAME
  entrypoint: ENTRYPOINT
  parameters: {recipe: tickets.yaml, overrides: []}
  schedules: [SCHEDULES]
"""


@pytest.fixture
def memo(tmp_path: Path) -> Memo:
    return Memo(tmp_path / "memo.db")


def deployed(
    folder: Path, schedules: str, entrypoint: str = "trnflow.flows.deployments.retrain", more: str = ""
) -> Recipe:
    """Write a recipe and a prefect.yaml that retrains it; return the recipe."""
    folder.mkdir(exist_ok=True)
    (folder / "tickets.yaml").write_text(RECIPE)
    text = DEPLOYMENT.replace("SCHEDULES", schedules).replace("ENTRYPOINT", entrypoint)
    (folder / "prefect.yaml").write_text(f"name: mine\ndeployments:{text}{more}")
    return load(str(folder / "tickets.yaml"))


@pytest.mark.parametrize(
    ("schedules", "looks"),
    [
        (NIGHTLY, 365),
        ('{cron: "@monthly"}', 12),
        ('{cron: "30 2 * * 1"}', 53),  # 365 days may begin and end on a Monday
        ('{cron: "0 9-17 * * 1-5", timezone: America/New_York}', 2349),
        ("{interval: 86400}", 365),
        ("{interval: 604800, anchor_date: '2026-02-01T00:00:00+00:00'}", 53),
        ("{interval: P1D}", 365),
        ("{interval: 60}", MOST_LOOKS),
        ("{rrule: 'FREQ=WEEKLY;BYDAY=MO,TH'}", 105),
        ("{rrule: 'FREQ=MONTHLY;BYMONTHDAY=1'}", 12),
        ("""{rrule: '{"rrule": "FREQ=MONTHLY;BYMONTHDAY=1", "timezone": "UTC"}'}""", 12),
        (f"{NIGHTLY}, {{rrule: 'FREQ=MONTHLY;BYMONTHDAY=1'}}", 377),
        ('{cron: "0 3 * * *", active: false}, {cron: "0 3 1 * *"}', 12),
        ('{cron: "0 3 * * *", parameters: {recipe: demo}}, {cron: "0 3 1 * *"}', 12),
        ('{cron: "0 3 * * *", parameters: {overrides: [name=other]}}, {cron: "0 3 1 * *"}', 12),
        ('{cron: "0 3 * * *", parameters: {recipe: "{{ $WHICH }}"}}, {cron: "0 3 1 * *"}', 12),
        ('{cron: "0 3 1 * *", parameters: {overrides: [train.epochs=2]}}', 12),
    ],
)
def test_looks_a_year_are_the_schedules_dates(tmp_path: Path, memo: Memo, schedules: str, looks: int) -> None:
    recipe = deployed(tmp_path, schedules)
    assert firings_per_year(recipe, memo) == (looks, tmp_path / "prefect.yaml")
    assert looks_of(recipe, memo)[0].looks_per_year == looks


@pytest.mark.parametrize("schedules", ["", "{cron: nightly}", "{interval: -5}", "{rrule: x}", "{slug: a}", "3"])
def test_what_is_no_schedule_counts_as_none(tmp_path: Path, memo: Memo, schedules: str) -> None:
    recipe = deployed(tmp_path, schedules)
    assert firings_per_year(recipe, memo) is None and looks_of(recipe, memo)[0].looks_per_year == 365
    assert "365 comparisons a year by the default" in promise(recipe, 2000, memo).text


@pytest.mark.parametrize("text", ["", "deployments", "deployments: [3]", "deployments: {a: 1}", "{", "\0"])
def test_a_malformed_prefect_yaml_has_no_schedules(tmp_path: Path, memo: Memo, text: str) -> None:
    recipe = deployed(tmp_path, NIGHTLY)
    (tmp_path / "prefect.yaml").write_text(text)
    assert firings_per_year(recipe, memo) is None


def test_only_retrains_count(tmp_path: Path, memo: Memo) -> None:
    text = DEPLOYMENT.replace("SCHEDULES", NIGHTLY).replace("ENTRYPOINT", "flows/deployments.py:")
    assert firings_per_year(deployed(tmp_path, "", more=text.replace("py:", "py:finetune")), memo) is None
    counted = deployed(tmp_path, "", more=text.replace("py:", "py:retrain"))
    assert firings_per_year(counted, memo) == (365, tmp_path / "prefect.yaml")
    paused = deployed(tmp_path, "", more=text.replace("py:", "py:retrain") + "  paused: true\n")
    assert firings_per_year(paused, memo) is None


def test_the_number_is_the_same_wherever_the_command_was_started(
    tmp_path: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker in the project's folder, or by hand in one with another prefect.yaml."""
    recipe = deployed(tmp_path / "project", '{cron: "0 3 1 * *"}')
    elsewhere = tmp_path / "elsewhere"
    deployed(elsewhere, NIGHTLY)
    for folder in (tmp_path / "project", elsewhere, tmp_path):
        monkeypatch.chdir(folder)
        assert looks_of(recipe, memo)[0].looks_per_year == 12
    inner = tmp_path / "project" / "recipes"
    inner.mkdir()
    (inner / "tickets.yaml").write_text(RECIPE)
    (tmp_path / "project" / "prefect.yaml").write_text(
        (tmp_path / "project" / "prefect.yaml").read_text().replace("tickets.yaml", "recipes/tickets.yaml")
    )
    assert firings_per_year(load(str(inner / "tickets.yaml")), memo) == (12, tmp_path / "project" / "prefect.yaml")


def test_a_shipped_recipe_takes_the_working_directorys_schedule(
    tmp_path: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(tmp_path, '{cron: "0 3 1 * *", parameters: {recipe: demo}}')
    monkeypatch.chdir(tmp_path)
    assert firings_per_year(load("demo"), memo) == (12, tmp_path / "prefect.yaml")


def test_the_setting_decides_before_the_schedule(tmp_path: Path, memo: Memo) -> None:
    deployed(tmp_path, NIGHTLY)
    given = load(str(tmp_path / "tickets.yaml"), ["promote.looks_per_year=52"])
    assert looks_of(given, memo) == (given.promote, "promote.looks_per_year")
    assert "52 comparisons a year by promote.looks_per_year" in promise(given, 2000, memo).text
    nightly = f"365 comparisons a year by the schedule in {tmp_path}"
    assert nightly in promise(load(str(tmp_path / "tickets.yaml")), 2000, memo).text


def test_a_schedule_is_counted_once_and_its_parameters_are_not_kept(tmp_path: Path, memo: Memo) -> None:
    """In a new process, which imports no part of Prefect for it."""
    recipe = deployed(tmp_path, '{cron: "0 3 1 * *", parameters: {overrides: [launch.environment.A=planted]}}')
    assert firings_per_year(recipe, memo) == (12, tmp_path / "prefect.yaml")
    script = f"""
import sys
from pathlib import Path
from trnflow.flows.recipes.recipe import load
from trnflow.flows.services.schedules import firings_per_year
from trnflow.tasks.keys.hash_cache import Memo
counted = firings_per_year(load({str(tmp_path / "tickets.yaml")!r}), Memo(Path({str(tmp_path / "memo.db")!r})))
print(counted[0], "prefect" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["12", "False"]
    assert b"planted" not in (tmp_path / "memo.db").read_bytes()
