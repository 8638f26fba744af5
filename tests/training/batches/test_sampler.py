"""Property tests of the data order: each row once an epoch, one length a batch, a pure function of the step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.toys import packed_classes, packed_lm, write_packed
from trnflow.tasks.data.chunks import COLUMNS, marks_file, open_chunks
from trnflow.tasks.errors import DataError
from trnflow.tasks.training.batches.sampler import IGNORED, Batch, BatchAddress, Schedule, Split, shift_targets

ROWS = st.dictionaries(st.sampled_from([16, 32, 64, 128]), st.integers(1, 40), min_size=1)


def sizes_of(rows: dict[int, int], seed: int) -> dict[int, np.ndarray]:
    random = np.random.default_rng(seed)
    return {length: random.integers(length // 2 + 1, length + 1, count) for length, count in rows.items()}


def held(address: BatchAddress) -> list[tuple[int, int]]:
    return [(length, row) for length, rows in address.unmasked_rows().items() for row in rows]


def test_rows_are_told_by_the_array_they_lie_in() -> None:
    mixed = BatchAddress(16, np.array([2, 0, 5, -1]), np.array([8, 16, 8, 16]))
    assert mixed.unmasked_rows() == {8: [2, 5], 16: [0]}
    assert BatchAddress(8, np.array([3, -1])).unmasked_rows() == {8: [3]}


@settings(max_examples=60, derandomize=True)
@given(
    rows=ROWS,
    batch=st.integers(1, 16),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
    grouped=st.booleans(),
    last=st.sampled_from(["pad", "drop"]),
)
def test_an_epoch_holds_every_row_once(
    rows: dict[int, int], batch: int, seed: int, epoch: int, grouped: bool, last: str
) -> None:
    total, sizes = sum(rows.values()), sizes_of(rows, seed) if grouped else None
    if last == "drop" and total < batch:
        with pytest.raises(DataError, match="global_batch"):
            Schedule(rows, batch, seed=seed, last_batch=last, sizes=sizes)
        return
    schedule = Schedule(rows, batch, seed=seed, last_batch=last, sizes=sizes)
    start = epoch * schedule.steps_per_epoch
    addresses = [schedule.address(step) for step in range(start, start + schedule.steps_per_epoch)]
    assert all(len(address.rows) == batch and address.length == max(address.lengths) for address in addresses)
    assert sum(len(held(address)) < batch for address in addresses) <= (last == "pad"), "one batch alone is not full"
    seen = [row for address in addresses for row in held(address)]
    every = {(length, row) for length, count in rows.items() for row in range(count)}
    assert len(set(seen)) == len(seen) and set(seen) <= every
    assert len(seen) == (total if last == "pad" else total - total % batch)


@settings(max_examples=30, derandomize=True)
@given(rows=ROWS, seed=st.integers(0, 3))
def test_rows_of_like_length_share_a_batch(rows: dict[int, int], seed: int) -> None:
    """As many batches as there are fit one window here: then the tokens of each batch's rows are next to each other."""
    sizes = sizes_of(rows, seed)
    schedule = Schedule(rows, 8, seed=seed, last_batch="pad", sizes=sizes)
    spans = []
    for step in range(schedule.steps_per_epoch):
        tokens = [sizes[length][row] for length, row in held(schedule.address(step))]
        spans.append((min(tokens), max(tokens)))
    spans.sort()
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


@settings(max_examples=20, derandomize=True)
@given(rows=ROWS, steps=st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_a_batch_depends_on_its_step_alone(rows: dict[int, int], steps: list[int]) -> None:
    one, other = (Schedule(rows, 4, seed=5, last_batch="pad") for _ in range(2))
    list(map(one.address, range(30)))
    for step in steps:
        assert one.address(step).length == other.address(step).length
        assert np.array_equal(one.address(step).rows, other.address(step).rows)
        assert np.array_equal(one.address(step).lengths, other.address(step).lengths)


def test_epochs_and_seeds_differ() -> None:
    first, second = (Schedule({16: 64}, 64, seed=seed, last_batch="pad") for seed in (0, 1))
    assert not np.array_equal(first.address(0).rows, first.address(1).rows)
    assert not np.array_equal(first.address(0).rows, second.address(0).rows)


def test_batches_of_all_lengths_are_mixed() -> None:
    schedule = Schedule({8: 64, 16: 64}, 8, seed=0, last_batch="pad")
    lengths = [schedule.address(step).length for step in range(16)]
    assert sorted(lengths) == [8] * 8 + [16] * 8 and len({*lengths[:8]}) == 2


def test_targets_stay_in_their_segment() -> None:
    labels = np.array([[5, 6, 7, 8, 9, 0]], np.int32)
    segments = np.array([[1, 1, 1, 2, 2, 0]], np.int32)
    assert shift_targets(labels, segments).tolist() == [[6, 7, IGNORED, 9, IGNORED, IGNORED]]


def test_masked_rows_have_no_target_and_no_token(tmp_path) -> None:
    split = Split(packed_classes(tmp_path, rows=5, lengths=[8]), "train")
    *_, last = split.in_order(4)
    batch = split.read(last)
    assert batch.samples == 1 and batch.supervised == 1
    assert batch.targets[1:].tolist() == [IGNORED] * 3
    assert batch.real == int((batch.segment_ids[0] != 0).sum())


def test_a_row_that_only_fills_a_batch_of_marked_answers_has_no_mark(tmp_path) -> None:
    columns = {name: np.tile([1, 1, 2, 2], (3, 1)) for name in COLUMNS}
    packed = write_packed(tmp_path, "unpaired_preference", None, {"train": {4: columns}})
    np.save(marks_file(tmp_path, "train", 4), np.array([[1], [-1], [1]], np.int8))
    split = Split(packed, "train")
    full, last = (split.read(address) for address in split.in_order(2))
    assert full.marks.tolist() == [[2], [-2]] and last.marks.tolist() == [[1], [0]]


def test_the_first_token_of_a_text_surprises_nobody(tmp_path) -> None:
    packed = packed_lm(tmp_path, rows=5)
    pairs = replace(packed, meta={**packed.meta, "task": "preference"})
    cuts = (open_chunks(pairs, "train", 16)["segment_ids"] == 1).sum(1)
    split = Split(pairs, "train")
    whole = split.read(next(split.in_order(8)))
    assert whole.surprise_share == split.surprise_share == 5 / (cuts - 1).sum()


def test_micro_batches_make_up_the_batch(tmp_path) -> None:
    split = Split(packed_lm(tmp_path, rows=8), "train")
    batch = split.read(next(split.in_order(8)))
    parts = list(batch.micro_batches(2))
    assert len(parts) == 4
    assert np.array_equal(np.concatenate([part.input_ids for part in parts]), batch.input_ids)
    assert sum(part.supervised for part in parts) == batch.supervised


def test_rows_of_other_lengths_are_padded_to_the_batch_s(tmp_path) -> None:
    split = Split(packed_classes(tmp_path, rows=5, lengths=[8, 16]), "train")
    mixed = split.read(BatchAddress(16, np.array([2, 0, -1]), np.array([8, 16, 16])))
    short = split.read(BatchAddress(8, np.array([2])))
    long = split.read(BatchAddress(16, np.array([0])))
    for name in ("input_ids", "segment_ids", "position_ids"):
        column = getattr(mixed, name)
        assert column.shape == (3, 16) and column.dtype == np.int32
        assert np.array_equal(column[0, :8], getattr(short, name)[0]) and not column[0, 8:].any()
        assert np.array_equal(column[1], getattr(long, name)[0])
    assert mixed.targets.tolist() == [short.targets[0], long.targets[0], IGNORED]
    assert mixed.samples == mixed.supervised == 2 and not mixed.segment_ids[2].any()


@settings(max_examples=60, derandomize=True)
@given(real=st.lists(st.integers(0, 12), min_size=1, max_size=9), unit=st.tuples(st.integers(1, 4), st.integers(1, 8)))
def test_trimming_takes_padding_alone(real: list[int], unit: tuple[int, int]) -> None:
    """real: tokens of each row; as in every batch, rows without any are the last."""
    rows, length = len(real), 12
    real.sort(reverse=True)
    segments = (np.arange(length)[None] < np.array(real)[:, None]).astype(np.int32)
    ids = segments * np.arange(1, rows * length + 1, dtype=np.int32).reshape(rows, length)
    batch = Batch(length, ids, np.where(segments > 0, ids, IGNORED), segments, ids, samples=rows)
    found = batch.trimmed(*unit)
    height, width = found.input_ids.shape
    assert found.length == length and (found.real, found.supervised) == (batch.real, batch.supervised)
    assert all(column.shape == (height, width) for column in (found.targets, found.segment_ids, found.position_ids))
    assert np.array_equal(found.input_ids, ids[:height, :width])
    needed = max(1, sum(tokens > 0 for tokens in real)), max(1, real[0])
    for size, need, multiple, most in zip((height, width), needed, unit, (rows, length), strict=True):
        assert size == min(-(-need // multiple) * multiple, most)
