"""Five people with a file reach a model that answers."""

from __future__ import annotations

import os

import pytest

from tests.acceptance.five_people import COMMANDS, PEOPLE, try_person, unknown_words


@pytest.mark.nightly
@pytest.mark.parametrize("name", PEOPLE)
def test_a_person_meets_no_wall(name: str) -> None:
    tried = try_person(PEOPLE[name])
    if tried is None:
        pytest.skip("not run: no GPU here")
    assert not tried.wall
    assert tried.commands <= COMMANDS


def test_words_that_neither_readme_nor_help_has_are_a_wall() -> None:
    known = 'trnflow new rows.csv store.root=s3://b/s --deploy "0 3 * * *"'
    assert unknown_words(known, dict(os.environ)) == []
    assert unknown_words("trnflow finetune rows.csv --fast train.lr=1", dict(os.environ)) == [
        "finetune",
        "--fast",
        "train.lr",
    ]
