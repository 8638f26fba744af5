"""Counts of shards, added up."""

from __future__ import annotations

from trnflow.tasks.data.tokenization.length_counts import Count, Example


def test_an_example_of_a_later_shard_names_the_row_of_the_split() -> None:
    split = Count()
    split.add(Count(read=10).meta())
    split.add(Count(read=5, rows=4, overlong=1, first={"overlong": Example(3, "12 tokens", "a text")}).meta())
    assert split.first == {"overlong": Example(13, "12 tokens", "a text")}
    assert (split.read, split.rows, split.overlong) == (15, 4, 1)
