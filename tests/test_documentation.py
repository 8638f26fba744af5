"""README and docs name files, commands and settings that exist; the README's recipe is one that loads."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from trnflow.flows.cli.headings import HEADINGS
from trnflow.flows.cli.main import parser
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.reference import settings_of

PAGES = [
    PROJECT / "README.md",
    PROJECT / "SECURITY.md",
    PROJECT / "ARCHITECTURE.md",
    *sorted((PROJECT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\((?!http)([^)#]+)\)", text)]
    paths = [PROJECT / path for path in re.findall(r"`((?:flows|tasks|tests|conf|docs)/[\w/.-]*)`", text)]
    assert not [path for path in links + paths if not path.exists()]
    top = parser()
    commands = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert set(re.findall(r"(?:^    |`)trnflow ([a-z]+)", text, re.MULTILINE)) <= set(commands)
    known = {one.name for one in settings_of(settings.Recipe)}
    sections = "|".join(name for name in settings.Recipe.model_fields if f"{name}." in " ".join(known))
    named = set(re.findall(rf"(?<![\w.])(?:{sections})\.[a-z_]+(?:\.[a-z_]+)?(?![\w./(])", text))
    assert not {name for name in named if not any(f"{name}.".startswith(f"{one}.") for one in known)}


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_link_to_a_heading_finds_it(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text())
    assert not [(name, anchor) for name, anchor in links if anchor not in slugs(page.parent / name if name else page)]


def test_the_commands_of_the_page_are_grouped_as_in_the_help() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| (.+) \| .+ \|$", (PROJECT / "docs/operation.md").read_text(), re.MULTILINE)
    page = {group: text for group, text in rows if group in HEADINGS}
    assert [*page] == [*HEADINGS]
    every = {name for names in HEADINGS.values() for name in names}
    for group, text in page.items():
        assert {name for name in re.findall(r"`([a-z]+)", text) if name in every} == {*HEADINGS[group]}


def test_each_promise_of_security_has_its_test() -> None:
    rows = [row for row in (PROJECT / "SECURITY.md").read_text().splitlines() if row.startswith("| ")][1:]
    named = [re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row) for row in rows]
    assert len(rows) > 10 and all(named)
    assert not [
        (file, test) for tests in named for file, test in tests
        if not (PROJECT / file).exists() or (test and f"def {test}(" not in (PROJECT / file).read_text())
    ]  # fmt: skip


def test_the_recipe_of_the_readme_loads(tmp_path: Path) -> None:
    text = (PROJECT / "README.md").read_text()
    (tmp_path / "tickets.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    recipe = settings.load(str(tmp_path / "tickets.yaml"), ["on=cpu", "train.epochs=1", "data.limit=1000"])
    assert (recipe.name, recipe.train.device, recipe.train.epochs) == ("tickets", "cpu", 1)


def test_the_pages_are_short() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 150
    assert len((PROJECT / "ARCHITECTURE.md").read_text().splitlines()) <= 160
