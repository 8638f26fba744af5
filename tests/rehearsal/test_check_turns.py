"""A chat template that leaves out a turn is refused before training, as are rows without an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.data_stages import Bench, loaded_rows, new_bench
from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.rehearsal.check_turns import TurnsConfig, check_turns

Talk = list[tuple[str, str]]
TALK: Talk = [
    ("user", "Where is the mill?"),
    ("assistant", "By the river."),
    ("user", "And the baker?"),
    ("assistant", "There."),
]


def check(root: Path, talks: list[Talk], written: list[str]) -> Bench:
    """Run the stage on conversations, and the texts that a template made of them."""
    bench = new_bench(root)
    told = [json.dumps([{"role": role, "content": text} for role, text in talk]) for talk in talks]
    rows = loaded_rows(root, {"talk": told}, nested=["talk"])
    folder = root / "texts"
    folder.mkdir()
    pq.write_table(pa.table({"parts": [[{"text": text, "train": True}] for text in written]}), folder / "train.parquet")
    bench.made(check_turns, TurnsConfig(messages="talk"), rows=rows, texts=Input(folder, "texts", {}, "sha256:texts"))
    return bench


def test_all_turns_are_there_whatever_the_blanks_and_without_earlier_thinking(tmp_path: Path) -> None:
    thought = [*TALK[:1], ("assistant", "<think>Rivers have mills.</think>By the river."), *TALK[2:]]
    text = "<s>Where is\nthe mill?By the river.And the baker? There.</s>"
    assert check(tmp_path, [TALK, thought], [text, text]).warnings() == []


@pytest.mark.parametrize("missing", range(4))
def test_a_turn_that_the_template_leaves_out_is_named(missing: int, tmp_path: Path) -> None:
    role, content = TALK[missing]
    text = " ".join(said for number, (_, said) in enumerate(TALK) if number != missing)
    with pytest.raises(ConfigError) as error:
        check(tmp_path, [TALK[:2], TALK], [" ".join(said for _, said in TALK[:2]), text])
    assert f"message {missing + 1} ({role}) of row 2 of the sample, {content!r}, is missing" in error.value.message


def test_blank_answers_are_counted_and_all_blank_ones_refused(tmp_path: Path) -> None:
    blank: Talk = [("user", "Where is the mill?"), ("assistant", "  ")]
    half = [*blank, *TALK[2:]]
    written = ["Where is the mill? By the river.", "Where is the mill?", "Where is the mill? And the baker? There."]
    said = check(tmp_path, [TALK[:2], blank, half], written).warnings()
    assert said == ["the assistant's answers are blank in 1 of 3 rows of the sample"], "of one row one answer is given"
    with pytest.raises(DataError, match="the assistant's answers are blank in all rows"):
        check(tmp_path / "all", [blank], ["Where is the mill?"])
