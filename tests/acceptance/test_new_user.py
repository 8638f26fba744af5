"""README.md's commands in order, in a fresh clone and an empty home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.new_user import HOST, Typed, commands, faults, script, type_all


def test_the_commands_are_the_page_s_in_an_order_that_can_run() -> None:
    lines = [command.line for command in script()]
    assert [line.split()[0] for line in lines[:5]] == ["git", "make", "make", ".", "cd"]
    assert [line.split()[1] for line in lines[5:]] == ["new", "run", "predict", "new", "run"]
    assert lines[0] == f"git clone {HOST}/trnflow && cd trnflow"
    assert not [line for line in lines if "YOUR-GIT-HOST" in line or "sentence-transformers/" in line]
    assert sum(bool(command.shown.strip()) for command in commands()) == 3


def test_what_a_new_user_would_stumble_over_is_said() -> None:
    ran, hit = "train  ran  61\n", "train  hit  0.00\n"
    good = [
        Typed("make run", "", ran),
        Typed("make run", "", hit),
        Typed("trnflow x", "        made 3 s", "made 5 s\n"),
    ]
    assert faults(good, 0) == []
    assert faults([good[0], good[0]], 0) == ["make run, again: train  ran  61"]
    assert faults([*good, Typed("trnflow y", "        hello 1", "bye")], 0) == ["trnflow y: did not print hello #"]
    assert faults([*good, Typed("trnflow z", "", "error: no")], 2) == ["trnflow z: exit code 2: error: no"]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_new_user_meets_no_wall(tmp_path: Path) -> None:
    assert faults(*type_all(tmp_path)) == []
