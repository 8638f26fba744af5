from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnflow.tasks.data.load.mixture import amounts, interleaved

counts = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 120), min_size=1)
sources = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 500), st.floats(0.01, 10)), min_size=1)


def test_first_exhausted_gives_no_row_twice():
    assert amounts({"a": 1000, "b": 1000}, {"a": 0.7, "b": 0.3}, "first_exhausted") == {"a": 1000, "b": 428}
    assert amounts({"a": 700, "b": 300}, {"a": 0.7, "b": 0.3}, "first_exhausted") == {"a": 700, "b": 300}
    assert amounts({"a": 100, "b": 9000}, {"a": 1, "b": 3}, "first_exhausted") == {"a": 100, "b": 300}


def test_all_exhausted_leaves_no_row_out():
    assert amounts({"a": 1000, "b": 1000}, {"a": 0.7, "b": 0.3}, "all_exhausted") == {"a": 2334, "b": 1000}
    assert amounts({"a": 100, "b": 9000}, {"a": 1, "b": 3}, "all_exhausted") == {"a": 3000, "b": 9000}


def test_without_weights_all_is_taken_and_a_limit_keeps_the_shares():
    assert amounts({"a": 30, "b": 10}, None, "first_exhausted") == {"a": 30, "b": 10}
    assert amounts({"a": 30, "b": 10}, None, "all_exhausted", limit=20) == {"a": 15, "b": 5}
    assert amounts({"a": 30, "b": 10}, {"a": 1, "b": 1}, "all_exhausted", limit=20) == {"a": 10, "b": 10}


@settings(derandomize=True, max_examples=200, deadline=None)
@given(sources, st.one_of(st.none(), st.integers(1, 1000)))
def test_shares_are_the_weights_to_the_row(given_sources, limit):
    there = {name: count for name, (count, _) in given_sources.items()}
    weights = {name: weight for name, (_, weight) in given_sources.items()}
    for strategy in ("first_exhausted", "all_exhausted"):
        found = amounts(there, weights, strategy, limit)
        total = sum(found.values())
        assert limit is None or total <= limit
        for name, rows in found.items():
            assert abs(rows - total * weights[name] / sum(weights.values())) < 1 + 1e-9
        if strategy == "first_exhausted":
            assert all(found[name] <= there[name] for name in there)
        elif limit is None:
            assert all(found[name] >= there[name] for name in there)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(counts, st.sampled_from([1, 7, 64]))
def test_interleaved_takes_every_row_once_and_each_source_in_its_order(rows, block):
    order: list[str] = []
    for taken, picks in interleaved(rows, block):
        ends = [name for name, count in taken.items() for _ in range(count)]
        assert sorted(picks) == list(range(len(ends)))
        for name in taken:  # a source's rows stay in order
            own = [pick for pick in picks if ends[pick] == name]
            assert own == sorted(own)
        order += [ends[pick] for pick in picks]
    assert {name: order.count(name) for name in rows} == rows
    total = len(order)
    # and at no point is one ahead of its share or behind it by more than the others may be
    for name, count in rows.items():
        ahead = np.cumsum([one == name for one in order]) - np.arange(1, total + 1) * count / total
        assert np.abs(ahead).max() <= len(rows)


@pytest.mark.parametrize("block", [1, 5, 1000])
def test_how_it_is_cut_changes_nothing(block):
    rows = {"a": 70, "b": 30, "c": 3}
    streams = {name: iter(range(count)) for name, count in rows.items()}
    made = []
    for taken, picks in interleaved(rows, block):
        end_to_end = [(name, next(streams[name])) for name, count in taken.items() for _ in range(count)]
        made += [end_to_end[pick] for pick in picks]
    assert made == sorted(made, key=lambda row: ((row[1] + 0.5) / rows[row[0]], row[0]))
