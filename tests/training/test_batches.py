"""Property tests of the data order: each row once an epoch, one length a batch, a pure function of the step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import DataError
from tasks.training.batches import IGNORED, Schedule, Split, shifted
from tests.training.toys import packed_classes, packed_lm

ROWS = st.dictionaries(st.sampled_from([16, 32, 64, 128]), st.integers(1, 40), min_size=1)


@settings(max_examples=60, derandomize=True)
@given(rows=ROWS, batch=st.integers(1, 16), seed=st.integers(0, 3), epoch=st.integers(0, 2))
def test_padded_epochs_hold_every_row_once(rows: dict[int, int], batch: int, seed: int, epoch: int) -> None:
    schedule = Schedule(rows, batch, seed=seed, last_batch="pad")
    start = epoch * schedule.steps_per_epoch
    seen: dict[int, list[int]] = {length: [] for length in rows}
    for step in range(start, start + schedule.steps_per_epoch):
        length, index = schedule.address(step)
        assert len(index) == batch and index.max() >= 0
        seen[length] += [int(row) for row in index if row >= 0]
    assert {length: sorted(found) for length, found in seen.items()} == {
        n: list(range(count)) for n, count in rows.items()
    }


@settings(max_examples=60, derandomize=True)
@given(rows=ROWS, batch=st.integers(1, 16))
def test_dropped_rows_are_the_remainders(rows: dict[int, int], batch: int) -> None:
    whole = sum(count // batch for count in rows.values())
    if not whole:
        with pytest.raises(DataError, match="global_batch"):
            Schedule(rows, batch, seed=0, last_batch="drop")
        return
    schedule = Schedule(rows, batch, seed=0, last_batch="drop")
    found = [(length, int(row)) for length, index in map(schedule.address, range(whole)) for row in index]
    assert schedule.steps_per_epoch == whole
    assert len(set(found)) == len(found) == whole * batch and min(row for _, row in found) >= 0


@settings(max_examples=20, derandomize=True)
@given(rows=ROWS, steps=st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_a_batch_depends_on_its_step_alone(rows: dict[int, int], steps: list[int]) -> None:
    one, other = (Schedule(rows, 4, seed=5, last_batch="pad") for _ in range(2))
    list(map(one.address, range(30)))
    for step in steps:
        assert one.address(step).length == other.address(step).length
        assert np.array_equal(one.address(step).rows, other.address(step).rows)


def test_epochs_and_seeds_differ() -> None:
    first, second = (Schedule({16: 64}, 64, seed=seed, last_batch="pad") for seed in (0, 1))
    assert not np.array_equal(first.address(0).rows, first.address(1).rows)
    assert not np.array_equal(first.address(0).rows, second.address(0).rows)


def test_targets_stay_in_their_segment() -> None:
    labels = np.array([[5, 6, 7, 8, 9, 0]], np.int32)
    segments = np.array([[1, 1, 1, 2, 2, 0]], np.int32)
    assert shifted(labels, segments).tolist() == [[6, 7, IGNORED, 9, IGNORED, IGNORED]]


def test_masked_rows_have_no_target_and_no_token(tmp_path) -> None:
    split = Split(packed_classes(tmp_path, rows=5, lengths=[8]), "train")
    *_, last = split.in_order(4)
    batch = split.read(last)
    assert batch.samples == 1 and batch.supervised == 1
    assert batch.targets[1:].tolist() == [IGNORED] * 3
    assert batch.real == int((batch.segment_ids[0] != 0).sum())


def test_micro_batches_make_up_the_batch(tmp_path) -> None:
    split = Split(packed_lm(tmp_path, rows=8), "train")
    batch = split.read(next(split.in_order(8)))
    parts = list(batch.micros(2))
    assert len(parts) == 4
    assert np.array_equal(np.concatenate([part.input_ids for part in parts]), batch.input_ids)
    assert sum(part.supervised for part in parts) == batch.supervised
