"""A row of two answers becomes two marked ones, or none: one of them alone would be learnt without its counterpart."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.tasks.data.format.config import FormatConfig, is_chat
from trnflow.tasks.data.format.marked_answers import marked_maker
from trnflow.tasks.data.format.preferences import TIED

PAIR: Any = {"columns": ["prompt", "chosen", "rejected"]}
MARKED: Any = {"columns": ["prompt", "completion", "label"]}
NOTHING: Any = None


@pytest.mark.parametrize(
    ("chosen", "rejected", "labels", "notes"),
    [
        ("So.", "No.", [1, 0], {"desirable", "undesirable"}),
        ("So.", " ", [], set()),
        ("", "No.", [], set()),
        ("So.", "So.", [], {TIED}),
    ],
)
def test_a_pair_is_two_answers_or_none(chosen: str, rejected: str, labels: list[int], notes: set[str]) -> None:
    made = marked_maker(PAIR, NOTHING, None, {})({"prompt": "Why? ", "chosen": chosen, "rejected": rejected}, "row 1")
    assert [example["label"] for example in made.examples] == labels and made.notes.keys() == notes


@pytest.mark.parametrize(("label", "mark"), [(True, 1), ("0", 0), (1.0, 1), (" False ", 0)])
def test_a_marked_answer_is_one_example(label: Any, mark: int) -> None:
    (made,) = marked_maker(MARKED, NOTHING, None, {})(
        {"prompt": "Why? ", "completion": "So.", "label": label}, "row 1"
    ).examples
    assert made["label"] == mark and [part["text"] for part in made["parts"]] == ["Why? ", "So."]


def test_completions_that_are_messages_are_chats() -> None:
    unpaired = FormatConfig(task="unpaired_preference")
    assert is_chat(unpaired, {"nested": ["prompt", "completion"]}) and not is_chat(unpaired, {"nested": []})
    assert not is_chat(FormatConfig(task="preference"), {"nested": ["completion"]})
