from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from trnflow.tasks.data.load.selection import limited, made_splits, repeated, row_hashes, shared_rows, stratified_splits

texts = st.lists(st.text(alphabet="abc", max_size=3), min_size=1, max_size=60)


def hashes(values: list[str]) -> np.ndarray:
    return row_hashes([pa.array(values, pa.string())])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(texts, st.integers(0, 5), st.floats(0.05, 0.45), st.floats(0.05, 0.45))
def test_made_splits_are_disjoint_complete_and_never_divide_equal_texts(values, seed, first, second):
    masks = made_splits(hashes(values), {"validation": first, "test": second}, seed)
    assert (sum(mask.astype(int) for mask in masks.values()) == 1).all()
    sides = [{value for value, inside in zip(values, mask, strict=True) if inside} for mask in masks.values()]
    assert sum(len(side) for side in sides) == len(set(values))


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.integers(20, 400), st.integers(0, 5), st.floats(0.05, 0.45))
def test_made_splits_have_their_size_but_for_chance(count, seed, fraction):
    masks = made_splits(hashes([str(n) for n in range(count)]), {"test": fraction}, seed)
    assert abs(masks["test"].sum() - fraction * count) <= 5 * (count * fraction * (1 - fraction)) ** 0.5
    assert masks["test"].any()


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.text(), min_size=12, unique=True), st.lists(st.text(), max_size=40), st.integers(0, 5))
def test_what_was_held_out_stays_held_out_when_rows_are_added(old, new, seed):
    """But for a split so small that chance left it empty."""
    before, after = (made_splits(hashes(rows), {"validation": 0.3, "test": 0.3}, seed) for rows in (old, new + old))
    by_chance = all(mask.sum() > 1 for mask in before.values())
    for name, mask in before.items():
        assert not by_chance or after[name][len(new) :].tolist() == mask.tolist()


def test_a_split_that_chance_left_empty_takes_a_text_of_train():
    masks = made_splits(hashes(["a", "b", "b", "c"]), {"validation": 1e-9, "test": 1e-9}, 0)
    assert {name: bool(mask.any()) for name, mask in masks.items()} == {"train": True, "validation": True, "test": True}
    assert (sum(mask.astype(int) for mask in masks.values()) == 1).all()
    assert masks["train"][1] == masks["train"][2]


def test_columns_of_a_row_do_not_run_into_each_other():
    first, second = (row_hashes([pa.array([left]), pa.array([right])]) for left, right in (("ab", "c"), ("a", "bc")))
    assert first != second


def test_a_limit_draws_rows():
    assert np.flatnonzero(limited(np.ones(100, dtype=bool), 20, 0, "train")).max() > 50


labelled = st.lists(st.sampled_from("aaaaaabbbc"), min_size=4, max_size=300)
parts = st.sampled_from([0.05, 0.1, 0.25, 0.4])


def stratified(labels: list[str], fractions: dict[str, float], seed: int, start: int = 0) -> dict[str, np.ndarray]:
    ids = np.array([ord(label) for label in labels], dtype=np.int32)
    return stratified_splits(hashes([f"text {start + n}" for n in range(len(labels))]), ids, fractions, seed)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(labelled, st.integers(0, 5), parts, parts)
def test_stratified_shares_are_exact_in_every_label(labels, seed, validation, test):
    masks = stratified(labels, {"validation": validation, "test": test}, seed)
    assert (sum(mask.astype(int) for mask in masks.values()) == 1).all()
    for label in set(labels):
        mine = np.array([one == label for one in labels])
        left = mine.sum() - 1  # one stays in train
        for name, fraction in (("validation", validation), ("test", test)):
            wanted = min(int(fraction * mine.sum() + 0.5), left)
            assert (masks[name] & mine).sum() == wanted
            left -= wanted
        assert (masks["train"] & mine).any()


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.text(alphabet="abc", max_size=3), st.sampled_from([0, 1]))), st.integers(0, 5), parts)
def test_stratified_never_divides_equal_texts_nor_exceeds_the_share(rows, seed, fraction):
    values, labels = [text for text, _ in rows], np.array([label for _, label in rows], dtype=np.int32)
    masks = stratified_splits(hashes(values), labels, {"test": fraction}, seed)
    sides = [{value for value, inside in zip(values, mask, strict=True) if inside} for mask in masks.values()]
    assert not set.intersection(*sides)
    assert masks["test"].sum() <= fraction * len(rows) + 1


@settings(derandomize=True, max_examples=100, deadline=None)
@given(labelled, labelled, st.integers(0, 5), parts, parts)
def test_appended_rows_move_no_more_than_they_are(old, new, seed, validation, test):
    fractions = {"validation": validation, "test": test}
    before, after = stratified(old, fractions, seed), stratified(old + new, fractions, seed)
    for name in fractions:
        for label in set(old):
            mine = np.array([one == label for one in old])
            moved = (before[name] != after[name][: len(old)]) & mine
            assert moved.sum() <= new.count(label)


def test_appended_rows_move_few():
    """Of 20,000 rows of a label a tenth is held out; 1,000 more move about sqrt(0.1 x 1,000) = 10."""
    labels = ["a"] * 20_000
    before, after = (stratified(labels[:count], {"test": 0.1}, 0) for count in (19_000, 20_000))
    assert before["test"].sum() == 1900 and after["test"].sum() == 2000
    assert (before["test"] != after["test"][:19_000]).sum() <= 40


@settings(derandomize=True, max_examples=60, deadline=None)
@given(texts)
def test_repeated_leaves_each_text_once(values):
    kept = [value for value, twice in zip(values, repeated(hashes(values)), strict=True) if not twice]
    assert kept == list(dict.fromkeys(values))


@settings(derandomize=True, max_examples=60, deadline=None)
@given(texts, texts)
def test_shared_rows(first, second):
    mask = shared_rows({"a": hashes(first), "b": hashes(second)})[("a", "b")]
    assert mask.tolist() == [value in set(second) for value in first]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 100), st.integers(1, 100), st.integers(0, 3))
def test_smaller_limits_are_subsets(rows, one, other, seed):
    keep = np.ones(rows, dtype=bool)
    small, large = (limited(keep, limit, seed, "train") for limit in sorted((one, other)))
    assert small.sum() == min(rows, one, other)
    assert not (small & ~large).any()
