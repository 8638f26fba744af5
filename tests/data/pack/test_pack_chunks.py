"""The stage: what chunks hold, what is counted, what is refused. Layouts alone are in test_packers.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.helpers.data_stages import files, new_bench
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import COLUMNS, chunk_file, open_chunks
from trnflow.tasks.errors import ConfigError, DataError

PAD = 7


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
        np.save(folder / split / "source_row.npy", np.arange(len(sizes)))
        np.save(folder / split / "source_tokens.npy", np.array(sizes, dtype=np.int32))
        if task == "causal_lm":
            np.save(folder / split / "loss_mask.npy", (np.arange(total) % 3 > 0).astype(np.uint8))
        else:
            np.save(folder / split / "labels.npy", np.arange(len(sizes), dtype=np.int32) % 5)
    meta = {
        "task": task,
        "labels": None,
        "splits": {split: len(sizes) for split, sizes in splits.items()},
        "longest": max(max(sizes, default=0) for sizes in splits.values()),
        "pad_id": PAD,
        "dropped": {},
    }
    return Input(folder, "tokens", meta, "sha256:tokens")


def arrays(packed: Input, split: str, length: int) -> dict[str, np.ndarray]:
    return {name: np.array(column) for name, column in open_chunks(packed, split, length).items()}


Document = tuple[tuple[int, ...], tuple[int, ...]]


def documents(packed: Input, split: str = "train") -> list[Document]:
    """(ids, labels) of every segment, in order of length, chunk and segment, after a look at all that holds of any chunk."""
    found = []
    for length, count in packed.meta["rows"][split].items():
        columns = arrays(packed, split, int(length))
        assert {values.shape for values in columns.values()} == {(count, int(length))}
        assert {str(values.dtype) for values in columns.values()} == {"int32"}
        for ids, labels, segment, position in zip(*(columns[name] for name in COLUMNS), strict=True):
            real = int((segment > 0).sum())
            assert (labels != -100).any(), "a chunk that teaches nothing"
            assert set(ids[real:]) <= {PAD} and set(labels[real:]) <= {-100} and not position[real:].any()
            numbers, sizes = np.unique(segment[:real], return_counts=True)
            assert numbers.tolist() == list(range(1, len(numbers) + 1))
            assert position[:real].tolist() == [place for size in sizes for place in range(size)]
            for number in numbers:
                here = segment == number
                found.append((tuple(ids[here].tolist()), tuple(labels[here].tolist())))
    return found


def document(ids: np.ndarray, mask: np.ndarray) -> Document:
    """As it should be packed: its first token is never supervised."""
    trained = [bool(value) and place > 0 for place, value in enumerate(mask)]
    labels = (int(token) if yes else -100 for token, yes in zip(ids, trained, strict=True))
    return tuple(ids.tolist()), tuple(labels)


def teaches(one: Document) -> bool:
    return any(label != -100 for label in one[1])


# --- the stage


def masks(sizes: list[int], seed: int, share: float) -> list[list[int]]:
    """The loss mask of each row; `share` of all tokens is trained on."""
    draw = np.random.default_rng(seed)
    return [(draw.random(size) < share).astype(int).tolist() for size in sizes]


row_sizes = st.lists(st.integers(1, 50), min_size=1, max_size=40)
masked_rows = st.builds(masks, row_sizes, st.integers(0, 99), st.sampled_from([0.03, 0.2, 0.7]))
PROPERTY = settings(derandomize=True, max_examples=40, deadline=None)


def tokens_with(root: Path, rows: list[list[int]], order: list[int] | None = None) -> tuple[Input, list[Document]]:
    """Rows of these loss masks, as the stage gets them and as documents; `order`: in another order."""
    ends = np.cumsum([0, *map(len, rows)])
    whole = [(np.arange(100 + a, 100 + b), np.array(mask)) for (a, b), mask in zip(pairwise(ends), rows, strict=True)]
    chosen = [whole[index] for index in order or range(len(rows))]
    tokens = tokens_of(root, train=[len(ids) for ids, _ in chosen])
    np.save(tokens.path / "train/input_ids.npy", np.concatenate([ids for ids, _ in chosen]).astype(np.int32))
    np.save(tokens.path / "train/loss_mask.npy", np.concatenate([mask for _, mask in chosen]).astype(np.uint8))
    return tokens, [document(ids, mask) for ids, mask in chosen]


def cut(rows: list[list[int]], length: int, *, across: bool) -> list[Document]:
    """The documents that the rows become: cut at every `length` tokens, of the row or (concat) of all rows."""
    found, start = [], 0
    for mask in rows:
        cuts = [c for c in range(len(mask)) if c == 0 or (start + c if across else c) % length == 0]
        for a, b in pairwise([*cuts, len(mask)]):
            found.append(document(np.arange(100 + start + a, 100 + start + b), np.array(mask[a:b])))
        start += len(mask)
    return found


@PROPERTY
@given(masked_rows, st.integers(2, 40), st.sampled_from(["pad", "bfd", "bucket"]))
def test_every_token_that_can_teach_is_packed_once_with_its_label(tmp_path_factory, rows, length, strategy):
    root = tmp_path_factory.mktemp("pack")
    tokens, _ = tokens_with(root, rows)
    expected = [one for one in cut(rows, length, across=False) if teaches(one)]
    pack = {"strategy": strategy, "chunk_length": length, "overlong": "split"}
    if not expected:
        with pytest.raises(DataError, match="none of its rows has a token to train on"):
            new_bench(root).packed(tokens, **pack)
        return
    packed = new_bench(root).packed(tokens, **pack)
    assert Counter(documents(packed)) == Counter(expected)
    real = sum(len(ids) for ids, _ in expected)
    assert packed.meta["real_tokens"] == {"train": real}
    assert packed.meta["left_out"] == {"train": sum(map(len, rows)) - real}
    labels = [label for _, labels in expected for label in labels]
    assert packed.meta["supervised_tokens"] == {"train": len(labels) - labels.count(-100)}
    assert packed.meta["cut"] == {"train": sum(len(mask) > length for mask in rows)}


@PROPERTY
@given(masked_rows, st.integers(2, 40))
def test_concat_keeps_order_and_leaves_out_chunks_that_teach_nothing(tmp_path_factory, rows, length):
    root = tmp_path_factory.mktemp("pack")
    rows = [mask for mask in rows if any(mask[1:])] or [[0, 1]]  # as tokenize_text leaves them
    tokens, _ = tokens_with(root, rows)
    chunks: dict[int, list[Document]] = {}
    for one in cut(rows, length, across=True):
        chunks.setdefault((one[0][0] - 100) // length, []).append(one)
    expected = [one for found in chunks.values() if any(map(teaches, found)) for one in found]
    bench = new_bench(root)
    if not expected:
        with pytest.raises(DataError, match="no chunk of"):
            bench.packed(tokens, strategy="concat", chunk_length=length)
        return
    packed = bench.packed(tokens, strategy="concat", chunk_length=length)
    assert documents(packed) == expected
    assert packed.meta["left_out"]["train"] == sum(map(len, rows)) - sum(len(ids) for ids, _ in expected)


@PROPERTY
@given(masked_rows, st.randoms(use_true_random=False), st.sampled_from(["pad", "bfd", "bucket"]))
def test_the_order_of_rows_does_not_matter(tmp_path_factory, rows, random, strategy):
    root = tmp_path_factory.mktemp("pack")
    rows = [mask for mask in rows if any(mask[1:])] or [[0, 1]]
    order = random.sample(range(len(rows)), len(rows))
    made = []
    for name, wanted in (("as they are", None), ("shuffled", order)):
        (root / name).mkdir()
        tokens, _ = tokens_with(root / name, rows, wanted)
        made.append(new_bench(root / name).packed(tokens, strategy=strategy, chunk_length=50))
    assert Counter(documents(made[0])) == Counter(documents(made[1]))
    assert made[0].meta == made[1].meta


def test_blocks_do_not_show(bench, tmp_path, monkeypatch):
    tokens = tokens_of(tmp_path, train=[1 + n % 13 for n in range(200)])
    whole = bench.packed(tokens, strategy="bfd", chunk_length=16)
    monkeypatch.setattr("trnflow.tasks.pack_chunks.BLOCK_TOKENS", 40)
    assert whole.meta["rows"]["train"]["16"] > 3
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
    tokens = tokens_of(tmp_path, train=[4, 20, 5, 9])
    error = r"train row 2: 20 tokens don't fit a chunk of 8 \(2 such rows\).* raise pack\.chunk_length to 20, .*split or drop"
    with pytest.raises(DataError, match=error):
        bench.packed(tokens, strategy="bfd", chunk_length=8)
    dropped = bench.packed(tokens, strategy="bfd", chunk_length=8, overlong="drop")
    assert dropped.meta["real_tokens"] == {"train": 9} and dropped.meta["cut"] == {"train": 0}
    assert dropped.meta["dropped"] == {"too_long_to_pack": 2}
    assert dropped.meta["too_long_to_pack"] == {"train": 2}
    assert {"info": "rows longer than 8 tokens dropped: 2"} in bench.said
    cut = bench.packed(tokens, strategy="bfd", chunk_length=8, overlong="split")
    assert cut.meta["real_tokens"] == {"train": 37} and cut.meta["left_out"] == {"train": 1}  # 9 = 8 + 1
    assert cut.meta["cut"] == {"train": 2} and cut.meta["dropped"] == {} and "too_long_to_pack" not in cut.meta
    assert bench.warnings() == ["tokens left out, in parts of rows with nothing to train on: 1"]


def test_a_chunk_shorter_than_every_row(bench, tmp_path):
    tokens = tokens_of(tmp_path, train=[4, 20, 5])
    with pytest.raises(DataError, match="split train row 1: 4 tokens don't fit a chunk of 3"):
        bench.packed(tokens, strategy="pad", chunk_length=3)
    with pytest.raises(DataError, match=r"all its rows are longer than 3\. Fix: raise pack\.chunk_length"):
        bench.packed(tokens, strategy="pad", chunk_length=3, overlong="drop")
    assert bench.packed(tokens, strategy="pad", chunk_length=3, overlong="split").meta["rows"] == {"train": {"3": 10}}
    with pytest.raises(DataError, match="none of its rows has a token to train on"):
        bench.packed(tokens, strategy="bfd", chunk_length=1, overlong="split")
    with pytest.raises(DataError, match="no chunk of 1 in the split train has a token to train on"):
        bench.packed(tokens, strategy="concat", chunk_length=1)


def test_rows_longer_than_the_given_buckets(bench, tmp_path):
    tokens = tokens_of(tmp_path, "classification", train=[3, 9, 30])
    pack = {"strategy": "bucket", "chunk_length": 64, "lengths": [4, 16]}
    with pytest.raises(
        DataError, match=r"row 3: 30 tokens .* of 16 .*raise the last of pack\.lengths to 30, .* to drop"
    ):
        bench.packed(tokens, **pack)
    assert bench.packed(tokens, **pack, overlong="drop").meta["rows"] == {"train": {"4": 1, "16": 1}}


@pytest.mark.parametrize("strategy", ["pad", "bucket", "concat", "bfd"])
def test_a_split_without_rows(bench, tmp_path, strategy):
    tokens = tokens_of(tmp_path, train=[3, 4], validation=[])
    with pytest.raises(DataError, match="the split validation has no rows"):
        bench.packed(tokens, strategy=strategy)


@pytest.mark.parametrize("strategy", ["concat", "bfd"])
def test_classification_is_not_packed(bench, tmp_path, strategy):
    tokens = tokens_of(tmp_path, "classification", train=[3])
    with pytest.raises(ConfigError, match=rf"pack\.strategy: {strategy} .*Fix: use bucket or pad"):
        bench.packed(tokens, strategy=strategy)


def test_settings_that_contradict_each_other(bench, tmp_path):
    tokens = tokens_of(tmp_path, "classification", train=[3])
    with pytest.raises(ConfigError, match=r"pack\.overlong"):
        bench.packed(tokens, strategy="pad", overlong="split")
    with pytest.raises(ConfigError, match=r"pack\.lengths is for strategy bucket"):
        bench.packed(tokens, strategy="pad", lengths=[8])
    with pytest.raises(ConfigError, match=r"longer than pack\.chunk_length"):
        bench.packed(tokens, strategy="bucket", lengths=[8, 1024])
    for wrong in ({"chunk_length": 0}, {"chunk_lenght": 8}):
        with pytest.raises(ValidationError):
            bench.packed(tokens, **wrong)
    for lengths in ([8, 4], [4, 4], []):
        with pytest.raises(ValidationError, match="lengths must ascend, each once"):
            bench.packed(tokens, strategy="bucket", lengths=lengths)


# --- the files


@pytest.mark.parametrize("task", ["causal_lm", "classification"])
def test_datasets_opens_what_numpy_maps(bench, tmp_path, task):
    from datasets import Dataset

    tokens = tokens_of(tmp_path, task, train=[1 + n % 13 for n in range(101)])
    packed = bench.packed(tokens, strategy="bucket", chunk_length=16, lengths=[5, 16])
    for length, count in packed.meta["rows"]["train"].items():
        columns = open_chunks(packed, "train", int(length))
        opened = Dataset.from_file(str(chunk_file(packed.path, "train", int(length)))).with_format("numpy")
        assert opened.column_names == list(columns) == list(COLUMNS) and len(opened) == count
        for name, column in columns.items():
            assert isinstance(column, np.memmap) and not column.flags.writeable
            assert np.array_equal(np.stack(opened[:][name]), column)


def test_datasets_copies_nothing(bench, tmp_path):
    """All columns lie in the file, in one batch: pyarrow reads them where they are."""
    import pyarrow as pa
    from datasets import Dataset

    packed = bench.packed(tokens_of(tmp_path, train=[5] * 3000), strategy="pad", chunk_length=512)
    before = pa.total_allocated_bytes()
    opened = Dataset.from_file(str(chunk_file(packed.path, "train", 512)))
    assert opened[2999]["input_ids"][:5] == [100 + 2999 * 5 + n for n in range(5)]
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert [column.num_chunks for column in opened.data.columns] == [1] * 4


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


def test_what_tokenising_dropped_stays_counted_beside_what_is_too_long(bench, tmp_path):
    tokens = tokens_of(tmp_path, train=[4, 20, 5])
    before = {**tokens.meta, "dropped": {"unsupervised": 3}}
    packed = bench.packed(replace(tokens, meta=before), strategy="bfd", chunk_length=8, overlong="drop")
    assert packed.meta["dropped"] == {"unsupervised": 3, "too_long_to_pack": 1}
