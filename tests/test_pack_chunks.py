from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.artifact import Input
from tasks.errors import ConfigError, DataError
from tasks.text.packers import Layout, best_fit, bucket_lengths, concatenated, cut_rows, whole_rows
from tests.data_stages import Bench, files, new_bench

PAD = 7


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return new_bench(tmp_path)


def tokens_of(root: Path, task: str = "causal_lm", **splits: list[int]) -> Input:
    """Rows of the given lengths; every token's id tells its place, every third is not trained on."""
    folder = root / "tokens"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer/tokenizer.json").write_text("{}")
    for split, sizes in splits.items():
        (folder / split).mkdir()
        total = sum(sizes)
        np.save(folder / split / "input_ids.npy", np.arange(100, 100 + total, dtype=np.int32))
        np.save(folder / split / "offsets.npy", np.cumsum([0, *sizes], dtype=np.int64))
        if task == "causal_lm":
            np.save(folder / split / "loss_mask.npy", (np.arange(total) % 3 > 0).astype(np.uint8))
        else:
            np.save(folder / split / "labels.npy", np.arange(len(sizes), dtype=np.int32) % 5)
    meta = {
        "task": task,
        "labels": None,
        "splits": {split: len(sizes) for split, sizes in splits.items()},
        "longest": max(max(sizes) for sizes in splits.values()),
        "pad_id": PAD,
        "dropped": {},
    }
    return Input(folder, "tokens", meta, "sha256:tokens")


def arrays(packed: Input, split: str, length: int) -> dict[str, np.ndarray]:
    folder = packed.path / split / str(length)
    return {path.stem: np.load(path, allow_pickle=False) for path in sorted(folder.glob("*.npy"))}


def segments(chunks: dict[str, np.ndarray]) -> list[list[int]]:
    """The token ids of every segment, in order of chunk and segment."""
    found = []
    for ids, segment in zip(chunks["input_ids"], chunks["segment_ids"], strict=True):
        found += [ids[segment == number].tolist() for number in range(1, segment.max() + 1)]
    return found


# --- layouts, as properties

lengths = st.integers(1, 40)
sizes_below = lengths.flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), min_size=1, max_size=60)))
sizes_any = st.tuples(lengths, st.lists(st.integers(0, 90), min_size=1, max_size=40).filter(any))
PROPERTY = settings(derandomize=True, max_examples=150)


def offsets(sizes: list[int]) -> np.ndarray:
    return np.cumsum([0, *sizes], dtype=np.int64)


def check(layout: Layout, sizes: list[int], length: int) -> None:
    """Every token exactly once, nothing overlaps or leaves its chunk, sorted by place."""
    pieces, place = layout.pieces, layout.chunk * length + layout.offset
    covered = [
        token for start, size in zip(pieces.start, pieces.size, strict=True) for token in range(start, start + size)
    ]
    assert sorted(covered) == list(range(sum(sizes)))
    assert (layout.offset + pieces.size <= length).all()
    assert (place[1:] >= place[:-1] + pieces.size[:-1]).all()
    assert set(layout.chunk.tolist()) == set(range(layout.chunks))


def naive_best_fit_decreasing(sizes: list[int], length: int) -> int:
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - size)
        else:
            rooms.append(length - size)
    return len(rooms)


@PROPERTY
@given(sizes_below)
def test_best_fit_packs_whole_rows_as_well_as_the_definition(case):
    length, sizes = case
    layout = best_fit(whole_rows(offsets(sizes)), length)
    check(layout, sizes, length)
    assert sorted(layout.pieces.row.tolist()) == list(range(len(sizes)))
    assert layout.chunks == naive_best_fit_decreasing(sizes, length)
    filled = np.bincount(layout.chunk, layout.pieces.size)
    smallest_two = np.sort(filled)[:2]
    assert len(smallest_two) < 2 or smallest_two.sum() > length  # any two chunks would not fit into one


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


# --- the stage


@settings(derandomize=True, max_examples=25, deadline=None)
@given(sizes_below, st.sampled_from(["pad", "bfd", "concat", "bucket"]))
def test_chunks_hold_every_token_with_its_label(tmp_path_factory, case, strategy):
    length, sizes = case
    root = tmp_path_factory.mktemp("pack")
    tokens = tokens_of(root, train=sizes)
    packed = new_bench(root).packed(tokens, strategy=strategy, chunk_length=length)
    real, supervised = [], 0
    for name, count in packed.meta["rows"]["train"].items():
        chunks = arrays(packed, "train", int(name))
        assert {values.shape for values in chunks.values()} == {(count, int(name))}
        assert {str(values.dtype) for values in chunks.values()} == {"int32"}
        ids, labels, segment, position = (chunks[k] for k in ("input_ids", "labels", "segment_ids", "position_ids"))
        padding = segment == 0
        assert (ids[padding] == PAD).all() and (labels[padding] == -100).all() and (position[padding] == 0).all()
        assert not (padding[:, :-1] & ~padding[:, 1:]).any()  # padding comes last
        trained = ~padding & ((ids - 100) % 3 > 0) & (position > 0)
        assert (labels == np.where(trained, ids, -100)).all()
        for one in segments(chunks):
            real += one
            assert one == list(range(one[0], one[0] + len(one)))
        starts = (position == 0) & ~padding
        assert starts.sum() == segment.max(axis=1).sum()
        assert (np.diff(segment, axis=1)[~padding[:, 1:]] == starts[:, 1:][~padding[:, 1:]]).all()
        supervised += int(trained.sum())
    assert sorted(real) == list(range(100, 100 + sum(sizes)))
    assert packed.meta["real_tokens"] == {"train": sum(sizes)}
    assert packed.meta["supervised_tokens"] == {"train": supervised}


def test_rows_are_never_cut_by_bfd(bench, tmp_path):
    sizes = [5, 3, 8, 2, 6, 4]
    tokens = tokens_of(tmp_path, train=sizes)
    packed = bench.packed(tokens, strategy="bfd", chunk_length=8)
    found = sorted(segments(arrays(packed, "train", 8)))
    ends = np.cumsum([0, *sizes]) + 100
    assert found == [list(range(a, b)) for a, b in pairwise(ends)]
    assert packed.meta["rows"] == {"train": {"8": 4}}
    assert packed.meta["lengths"] == [8]
    assert (packed.path / "tokenizer/tokenizer.json").read_text() == "{}"


def test_blocks_do_not_show(bench, tmp_path, monkeypatch):
    tokens = tokens_of(tmp_path, train=[1 + n % 13 for n in range(200)])
    whole = bench.packed(tokens, strategy="bfd", chunk_length=16)
    monkeypatch.setattr("tasks.pack_chunks.BLOCK_TOKENS", 40)
    assert files(bench.packed(tokens, strategy="bfd", chunk_length=16).path) == files(whole.path)


def test_buckets_come_from_train_and_one_more_holds_the_longest_of_the_others(bench, tmp_path):
    train = [5] * 50 + [20] * 30 + [30] * 2
    tokens = tokens_of(tmp_path, "classification", train=train, validation=[6, 31], test=[6, 77])
    packed = bench.packed(tokens, strategy="bucket", chunk_length=128, buckets=2)
    assert packed.meta["lengths"] == [8, 32, 80]
    assert packed.meta["rows"] == {
        "train": {"8": 50, "32": 32},
        "validation": {"8": 1, "32": 1},
        "test": {"8": 1, "80": 1},
    }
    labels = arrays(packed, "train", 8)["labels"]
    assert labels.dtype == np.int32 and labels.tolist() == [n % 5 for n in range(50)]
    assert arrays(packed, "test", 80)["labels"].tolist() == [1]
    assert packed.meta["supervised_tokens"] == {"train": 82, "validation": 2, "test": 2}


def test_given_buckets_are_used_as_they_are(bench, tmp_path):
    tokens = tokens_of(tmp_path, "classification", train=[3, 9, 12])
    packed = bench.packed(tokens, strategy="bucket", chunk_length=16, lengths=[4, 10, 16])
    assert packed.meta["lengths"] == [4, 10, 16]
    assert packed.meta["rows"]["train"] == {"4": 1, "10": 1, "16": 1}


def test_overlong_rows(bench, tmp_path):
    tokens = tokens_of(tmp_path, train=[4, 20, 5])
    with pytest.raises(DataError, match=r"split train row 2: 20 tokens don't fit a chunk of 8 \(1 such rows\)"):
        bench.packed(tokens, strategy="bfd", chunk_length=8)
    dropped = bench.packed(tokens, strategy="bfd", chunk_length=8, overlong="drop")
    assert dropped.meta["real_tokens"] == {"train": 9}
    assert dropped.meta["dropped"] == {"too_long_to_pack": 1}
    cut = bench.packed(tokens, strategy="bfd", chunk_length=8, overlong="split")
    assert cut.meta["real_tokens"] == {"train": 29}
    assert cut.meta["cut"] == {"train": 1}
    with pytest.raises(DataError, match="all its rows are longer than 3"):
        bench.packed(tokens, strategy="pad", chunk_length=3, overlong="drop")


@pytest.mark.parametrize("strategy", ["concat", "bfd"])
def test_classification_is_not_packed(bench, tmp_path, strategy):
    tokens = tokens_of(tmp_path, "classification", train=[3])
    with pytest.raises(ConfigError, match=rf"pack\.strategy: {strategy} .*Fix: use bucket or pad"):
        bench.packed(tokens, strategy=strategy)


def test_settings_that_contradict_each_other(bench, tmp_path):
    tokens = tokens_of(tmp_path, "classification", train=[3])
    with pytest.raises(ConfigError, match=r"pack\.overlong"):
        bench.packed(tokens, strategy="pad", overlong="split")
    with pytest.raises(ConfigError, match=r"pack\.lengths are buckets"):
        bench.packed(tokens, strategy="pad", lengths=[8])
    with pytest.raises(ConfigError, match=r"longer than pack\.chunk_length"):
        bench.packed(tokens, strategy="bucket", lengths=[8, 1024])
    for wrong in ({"chunk_length": 0}, {"lengths": [8, 4]}, {"lengths": []}, {"chunk_lenght": 8}):
        with pytest.raises(ValidationError):
            bench.packed(tokens, **wrong)


# --- real data


def test_dolly_packs_dense_and_keeps_its_answers(bench, shared):
    rows = bench.rows(source=str(shared / "data/dolly15k"), limit=3000, split={"validation": 0.05})
    texts = bench.texts(rows, task="instruction")
    tokens = bench.tokens(texts, {"source": str(shared / "assets/stories260K-hf")}, max_length=512)
    made = {name: bench.packed(tokens, strategy=name, chunk_length=512) for name in ("pad", "concat", "bfd")}
    efficiency = {name: packed.meta["metrics"]["efficiency"] for name, packed in made.items()}
    assert efficiency["bfd"] > 0.98 and efficiency["concat"] > 0.99 and efficiency["pad"] < 0.6
    assert {packed.meta["real_tokens"]["train"] for packed in made.values()} == {tokens.meta["tokens"]["train"]}
    assert made["bfd"].meta["supervised_tokens"] == made["pad"].meta["supervised_tokens"]
    again = bench.packed(tokens, strategy="bfd", chunk_length=512)
    assert files(again.path) == files(made["bfd"].path)
    assert again.meta == made["bfd"].meta


def test_emotion_in_few_lengths(bench, shared):
    rows = bench.rows(source=str(shared / "data/emotion"), label="label")
    model = {"config": {"model_type": "bert"}, "tokenizer": str(shared / "assets/bert-base-uncased")}
    tokens = bench.tokens(bench.texts(rows), model, max_length=128)
    packed = bench.packed(tokens, strategy="bucket", chunk_length=128)
    assert len(packed.meta["lengths"]) <= 5 and all(length % 8 == 0 for length in packed.meta["lengths"])
    assert {split: sum(found.values()) for split, found in packed.meta["rows"].items()} == tokens.meta["splits"]
    assert packed.meta["metrics"]["efficiency"] > 0.7
    names = {path.name for path in (packed.path / "tokenizer").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json"} <= names
