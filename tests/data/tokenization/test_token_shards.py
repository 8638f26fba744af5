"""Cuts follow the content: the same wherever batches end, and an edit moves only those next to it."""

from __future__ import annotations

import random
from itertools import accumulate, chain, pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from trnflow.tasks.data.tokenization.token_shards import ROW, content_digest, cut_shards, texts_of

PARTS = pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_())]))
Rows = list[Any]

texts = st.lists(st.tuples(st.text(max_size=30), st.integers(-5, 5)), max_size=40)
parts = st.lists(st.lists(st.tuples(st.text(max_size=12), st.booleans()), max_size=3), max_size=40)
sizes = st.sampled_from([1, 50, 200, 10**6])


def classified(rows: Rows) -> pa.Table:
    return pa.table(
        {"text": pa.array([text for text, _ in rows], pa.string()), "label": pa.array([n for _, n in rows], pa.int64())}
    )


def causal(rows: Rows) -> pa.Table:
    made = [[{"text": text, "train": train} for text, train in row] for row in rows]
    return pa.table({"parts": pa.array(made, PARTS)})


def batched(table: pa.Table, cuts: list[int]) -> list[pa.RecordBatch]:
    """The table in batches that end at `cuts`: slices of one memory, as readers give them."""
    edges = sorted({0, table.num_rows, *(cut % (table.num_rows + 1) for cut in cuts)})
    return [batch for start, end in pairwise(edges) for batch in table.slice(start, end - start).to_batches()]


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.one_of(texts.map(classified), parts.map(causal)), sizes, st.lists(st.integers(0, 100), max_size=6))
def test_shards_are_the_rows_in_order_wherever_batches_end(table: pa.Table, size: int, cuts: list[int]) -> None:
    shards = list(cut_shards(batched(table, cuts), size))
    assert [*chain(*(shard.to_pylist() for shard in shards))] == table.to_pylist()
    whole = list(cut_shards(table.to_batches(), size))
    assert [content_digest(shard) for shard in shards] == [content_digest(shard) for shard in whole]
    assert all(shard.num_rows for shard in shards)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(texts.filter(len), sizes)
def test_a_shard_holds_half_to_twice_the_size(rows: Rows, size: int) -> None:
    for shard in list(cut_shards(classified(rows).to_batches(), size))[:-1]:
        weights = list(accumulate(len(text.encode()) + ROW for text in shard["text"].to_pylist()))
        assert weights[-1] >= size / 2
        assert len(weights) == 1 or weights[-2] < size * 2


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.one_of(st.tuples(texts, texts, st.just(classified)), st.tuples(parts, parts, st.just(causal))), st.data())
def test_digests_are_equal_when_the_rows_are(case: Any, data: st.DataObject) -> None:
    one, other, table = case
    cuts = data.draw(st.lists(st.integers(0, 100), max_size=5))
    again = pa.Table.from_batches(batched(table(other + one), [len(other), *cuts]), table(one).schema).slice(len(other))
    assert content_digest(again) == content_digest(table(one))
    assert (content_digest(table(one)) == content_digest(table(other))) == (one == other)


def test_nothing_is_not_an_empty_text() -> None:
    tables = [pa.table({"text": pa.array(values, pa.string())}) for values in ([None, "a"], ["", "a"], ["a", None])]
    tables += [pa.table({"text": ["a"], "label": pa.array(values, pa.int64())}) for values in ([None], [0])]
    assert len({content_digest(table) for table in tables}) == len(tables)


def sentences(count: int, seed: int) -> Rows:
    dice = random.Random(seed)
    return [(" ".join(dice.choices("abcdefgh", k=dice.randrange(5, 60))), 0) for _ in range(count)]


def shard_digests(rows: Rows) -> list[str]:
    return [content_digest(shard) for shard in cut_shards(classified(rows).to_batches(64), 4000)]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.integers(0, 2000), st.integers(0, 3), st.integers(0, 3))
def test_an_edit_moves_only_the_cuts_next_to_it(at: int, removed: int, added: int) -> None:
    rows = sentences(2000, seed=1)
    before = shard_digests(rows)
    after = shard_digests(rows[:at] + sentences(added, seed=at + 2) + rows[at + removed :])
    assert len(before) > 40
    assert len(set(after) - set(before)) <= 5


def test_appended_rows_change_the_last_shard_alone() -> None:
    rows = sentences(2000, seed=1)
    before, after = shard_digests(rows), shard_digests(rows + sentences(20, seed=2))
    assert after[: len(before) - 1] == before[:-1]
    assert len(after) <= len(before) + 1


def test_rows_that_are_all_alike_are_cut_by_size() -> None:
    counts = [shard.num_rows for shard in cut_shards(classified([("same", 0)] * 10_000).to_batches(), 3600)]
    assert len(set(counts[:-1])) == 1
    assert 50 <= counts[0] <= 200


def test_flags_that_parts_lack_are_false_and_a_prompt_ends_with_its_part() -> None:
    parts = pa.array([[{"text": "ab", "train": True}, {"text": "é"}], [{"text": "c", "ends_prompt": True}]])
    texts = texts_of(pa.table({"parts": parts}))
    assert texts.train.tolist() == [True, False, False] and texts.ends_prompt.tolist() == [False, False, True]
    assert not texts.plain.any() and not texts.held_out.any()
    assert texts.prompts.tolist() == [5] and texts.rows.tolist() == [0, 4, 5]
