"""Arguments that several commands share, and the page of `trnflow --help`."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from pathlib import Path

import pytest

from trnflow.flows.cli.arguments import number
from trnflow.flows.cli.headings import HEADINGS, help_page
from trnflow.flows.cli.main import GROUPS
from trnflow.flows.cli.model.publish_commands import publish
from trnflow.tasks.errors import ConfigError


def test_a_number_lies_between_its_bounds_or_on_them() -> None:
    assert [number(int, 1, 65535)(text) for text in ("1", "65535")] == [1, 65535]
    for text, said in {"0": "from 1 to 65535", "65536": "from 1 to 65535"}.items():
        with pytest.raises(ArgumentTypeError, match=said):
            number(int, 1, 65535)(text)
    for text in ("-1", "nan", "inf"):
        with pytest.raises(ArgumentTypeError, match="a number from 0 on"):
            number(float, 0)(text)


def test_each_command_has_its_line_on_the_page_of_help() -> None:
    lines = {name: f"what {name} does" for names, _ in GROUPS.values() for name in names}
    assert sorted(name for names in HEADINGS.values() for name in names) == sorted(lines)
    page = help_page(lines)
    assert all(page.count(f"  {line}\n") == 1 for line in lines.values())


def test_publish_looks_into_the_store_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    root = str(tmp_path / "elsewhere")
    options = Namespace(recipe="0" * 12, overrides=[], store=root, what="model", to="published", replace=False)
    with pytest.raises(ConfigError, match=f"no store at {root}"):
        publish(options)
