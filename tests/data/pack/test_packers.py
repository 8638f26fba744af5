"""Layouts of rows in chunks, as properties of pure functions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trnflow.tasks.data.pack.packers import (
    ChunkLayout,
    best_fit,
    bucket_lengths,
    concatenated,
    cut_rows,
    trained_on,
    whole_rows,
)

lengths = st.integers(1, 40)
sizes_below = lengths.flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), min_size=1, max_size=60)))
sizes_any = st.tuples(lengths, st.lists(st.integers(0, 90), min_size=1, max_size=40).filter(any))
PROPERTY = settings(derandomize=True, max_examples=150, deadline=None)


def offsets(sizes: list[int]) -> np.ndarray:
    return np.cumsum([0, *sizes], dtype=np.int64)


def check(layout: ChunkLayout, sizes: list[int], length: int) -> None:
    """Every token exactly once, nothing overlaps or leaves its chunk, sorted by place."""
    pieces, place = layout.pieces, layout.chunk * length + layout.offset
    covered = [
        token for start, size in zip(pieces.start, pieces.size, strict=True) for token in range(start, start + size)
    ]
    assert sorted(covered) == list(range(sum(sizes)))
    assert (layout.offset + pieces.size <= length).all()
    assert (place[1:] >= place[:-1] + pieces.size[:-1]).all()
    assert set(layout.chunk.tolist()) == set(range(layout.chunks))


def filled(layout: ChunkLayout) -> list[int]:
    return np.bincount(layout.chunk, layout.pieces.size, minlength=layout.chunks).astype(int).tolist()


def contents(layout: ChunkLayout) -> list[list[tuple[int, int, int]]]:
    """Each chunk's pieces: where they start, how long they are, where they go."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(layout.chunks)]
    places = zip(layout.chunk, layout.pieces.start, layout.pieces.size, layout.offset, strict=True)
    for chunk, start, size, offset in places:
        found[chunk].append((int(start), int(size), int(offset)))
    return found


def naive_best_fit_decreasing(sizes: list[int], length: int) -> list[int]:
    """Tokens of each chunk, one size after another, as textbooks have it."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - size)
        else:
            rooms.append(length - size)
    return [length - room for room in rooms]


@PROPERTY
@given(sizes_below)
def test_best_fit_packs_whole_rows_as_well_as_the_definition(case):
    length, sizes = case
    layout = best_fit(whole_rows(offsets(sizes)), length)
    check(layout, sizes, length)
    assert sorted(layout.pieces.row.tolist()) == list(range(len(sizes)))
    assert sorted(filled(layout)) == sorted(naive_best_fit_decreasing(sizes, length))
    smallest_two = sorted(filled(layout))[:2]
    assert len(smallest_two) < 2 or sum(smallest_two) > length  # any two chunks would not fit into one


@PROPERTY
@given(sizes_below)
def test_best_fit_shows_the_sets_order(case):
    length, sizes = case
    layout = best_fit(whole_rows(offsets(sizes)), length)
    first = [int(layout.pieces.row[layout.chunk == chunk][0]) for chunk in range(layout.chunks)]
    assert first == sorted(first)
    for chunk in range(layout.chunks):
        inside = layout.pieces.row[layout.chunk == chunk].tolist()
        assert inside == sorted(inside)


@PROPERTY
@given(sizes_any)
def test_concat_loses_no_token_and_pads_only_the_tail(case):
    length, sizes = case
    layout = concatenated(whole_rows(offsets(sizes)), length)
    check(layout, sizes, length)
    assert layout.chunks == -(-sum(sizes) // length)
    place = layout.chunk * length + layout.offset
    assert (place == layout.pieces.start).all()
    assert len(layout.pieces.row) <= len(sizes) + layout.chunks


@PROPERTY
@given(sizes_any)
def test_cut_rows_keep_every_token_in_order(case):
    length, sizes = case
    pieces = cut_rows(whole_rows(offsets(sizes)), length)
    assert pieces.size.max() <= length
    assert (pieces.start + pieces.size)[-1] == sum(sizes)
    assert (pieces.start[1:] == (pieces.start + pieces.size)[:-1]).all()
    for row, size in enumerate(sizes):
        assert (pieces.row == row).sum() == max(-(-size // length), 1)


def padded(sizes: list[int], chosen: list[int]) -> int:
    return sum(min(length for length in chosen if length >= size) for size in sizes)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 4), st.integers(60, 70))
def test_bucket_lengths_pad_least(sizes, buckets, most):
    from itertools import combinations

    chosen = bucket_lengths(np.array(sizes), most, buckets)
    assert chosen == sorted(set(chosen)) and len(chosen) <= buckets
    assert all(length % 8 == 0 or length == most for length in chosen)
    longest = min(-(-max(sizes) // 8) * 8, most)
    assert chosen[-1] == longest
    others = [min(n * 8, most) for n in range(1, 10) if min(n * 8, most) < longest]
    best = min(padded(sizes, [*some, longest]) for k in range(buckets) for some in combinations(others, k))
    assert padded(sizes, chosen) == best


def test_bfd_is_fast_enough_to_pack_many_rows():
    sizes = np.minimum(np.random.default_rng(0).lognormal(5, 1, 100_000).astype(np.int64) + 1, 2048)
    layout = best_fit(whole_rows(np.concatenate([[0], np.cumsum(sizes)])), 2048)
    assert sizes.sum() / (layout.chunks * 2048) > 0.999


@PROPERTY
@given(sizes_any, st.integers(0, 99), st.sampled_from([0.02, 0.1, 0.5]))
def test_a_piece_teaches_if_it_is_trained_on_after_its_first_token(case, seed, share):
    length, sizes = case
    mask = (np.random.default_rng(seed).random(sum(sizes)) < share).astype(np.uint8)
    pieces = cut_rows(whole_rows(offsets(sizes)), length)
    some = pieces.where(np.arange(len(pieces.size)) % 3 > 0)  # they need not touch
    for chosen in (pieces, some):
        ends = chosen.start + chosen.size
        expected = [bool(mask[start + 1 : end].any()) for start, end in zip(chosen.start, ends, strict=True)]
        assert trained_on(chosen, mask).tolist() == expected


@PROPERTY
@given(sizes_any, st.integers(0, 99))
def test_chosen_chunks_are_numbered_anew(case, seed):
    length, sizes = case
    layout = concatenated(whole_rows(offsets(sizes)), length)
    wanted = np.random.default_rng(seed).random(layout.chunks) < 0.6
    only = layout.only(wanted)
    numbers = np.flatnonzero(wanted)
    assert only.chunks == len(numbers)
    assert numbers[only.chunk].tolist() == [chunk for chunk in layout.chunk.tolist() if wanted[chunk]]
    assert contents(only) == [pieces for pieces, chosen in zip(contents(layout), wanted, strict=True) if chosen]
