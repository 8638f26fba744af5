from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.data.load.rows import REVIEWS, write
from tests.helpers.data_stages import files, table
from trnflow.tasks.errors import DataError
from trnflow.tasks.load_data import DataConfig


def test_emotion_has_its_names_and_its_leaks_are_counted(bench, shared):
    rows = bench.rows(source=str(shared / "data/emotion"), label="label")
    assert rows.meta["splits"] == {"train": 16000, "validation": 2000, "test": 2000}
    assert rows.meta["labels"] == ["sadness", "joy", "love", "anger", "fear", "surprise"]
    assert rows.meta["columns"] == ["text", "label"]
    assert rows.meta["leakage"] == {"train/validation": 5, "train/test": 11, "validation/test": 3}
    assert "5 of train also in validation" in bench.warnings()[0]
    assert rows.meta["duplicates"] == 31
    assert bench.warnings()[1:] == [
        "rows of train that repeat an earlier text: 31; data.dedupe=true drops them",
        "texts of train that stand with several labels: 30; a model can learn one of them at most",
    ]
    original = pq.read_table(shared / "data/emotion/test.parquet")
    assert table(rows, "test") == {"text": original["text"].to_pylist(), "label": original["label"].to_pylist()}


def test_dedupe_drops_from_train_alone(bench, shared):
    rows = bench.rows(source=str(shared / "data/emotion"), label="label", dedupe=True)
    assert rows.meta["dropped"] == {"duplicate": 31, "leaked": 16}
    told = ["texts of train that stand with several labels: 30; the first row of each is kept"]
    assert (rows.meta["duplicates"], bench.warnings()) == (31, told)
    assert rows.meta["splits"] == {"train": 16000 - 31 - 16, "validation": 2000, "test": 2000}
    train = table(rows, "train")["text"]
    assert len(set(train)) == len(train)
    assert not set(train) & {*table(rows, "validation")["text"], *table(rows, "test")["text"]}


def test_label_sorted_imdb_reaches_training_shuffled(bench, shared):
    """The rows keep the file's order, by label; the batches don't. As from `pack: pad`, at 8 tokens a row."""
    from trnflow.tasks.training.batches.sampler import Schedule, Split

    rows = bench.rows(source=str(shared / "data/imdb"), label="label", limit={"train": 1600, "test": 10})
    assert table(rows, "train")["label"] == sorted(table(rows, "train")["label"])
    vocabulary = {"source": str(shared / "assets/stories260K-hf")}
    tokens = bench.tokens(bench.texts(rows), vocabulary, max_length=8, overlong="truncate")
    split = Split(bench.packed(tokens, strategy="pad", chunk_length=8), "train")
    schedule = Schedule(split.rows, 16, seed=0, last_batch="drop")
    positives = [split.read(address).targets.sum() for address in schedule.epoch(0)]
    assert len(positives) == 100 and sum(positives) == sum(table(rows, "train")["label"])
    assert sum(2 <= count <= 14 for count in positives) >= 99  # by chance 1 in 2,000 is outside
    assert [split.read(address).targets.sum() for address in schedule.epoch(1)] != positives


def test_stratified_shares_of_emotion(bench, shared):
    source = {"source": str(shared / "data/emotion/train.parquet"), "label": "label", "split": {"test": 0.1}}
    rows = bench.rows(**source, stratify=True)
    whole = Counter(table(rows, "train")["label"]) + Counter(table(rows, "test")["label"])
    held = Counter(table(rows, "test")["label"])
    # but for rounding, and 30 texts that stand under two labels
    assert all(abs(held[label] - 0.1 * count) <= 2 for label, count in whole.items())
    assert rows.meta["leakage"] == {"train/test": 0}
    by_hash = Counter(table(bench.rows(**source), "test")["label"])
    assert any(abs(by_hash[label] - 0.1 * count) > 10 for label, count in whole.items())


def test_labels_that_all_differ_leave_a_stratified_split_empty(bench):
    rows = "\n".join(f'{{"text": "text {number}", "label": "name {number}"}}' for number in range(50))
    (bench.root / "rows.jsonl").write_text(rows)
    with pytest.raises(DataError, match="the split test is empty") as error:
        bench.rows(source=str(bench.root / "rows.jsonl"), label="label", split={"test": 0.1}, stratify=True)
    assert "data.stratify: it shares out each label by itself" in str(error.value.fix)


def test_rows_of_one_text_say_so_where_a_split_stays_empty(bench):
    (bench.root / "equal.csv").write_text("text,label\n" + "".join(f"the same,{name}\n" for name in "abab" * 10))
    with pytest.raises(DataError, match="is empty: all rows have the same text, and equal texts stay in one split"):
        bench.rows(source=str(bench.root / "equal.csv"), label="label", split={"test": 0.1})


@pytest.mark.parametrize(
    ("users", "told"),
    [
        (["anna"], "is empty: all rows have the same user, and"),
        (["anna", "bob"], "is empty after splitting and dropping;"),
    ],
)
def test_rows_of_few_users_say_so_where_a_split_stays_empty(bench, users, told):
    rows = "".join(f"text {number},{'ab'[number % 2]},{users[number % len(users)]}\n" for number in range(40))
    (bench.root / "few.csv").write_text("text,label,user\n" + rows)
    with pytest.raises(DataError, match=rf"{told} rows of one user \(data.split_by\) stay in one split"):
        bench.rows(
            source=str(bench.root / "few.csv"),
            label="label",
            columns={"user": "user"},
            split={"validation": 0.1, "test": 0.1},
            split_by="user",
        )


def test_limit_of_label_sorted_imdb_is_a_balanced_sample_in_order(bench, shared):
    rows = bench.rows(source=str(shared / "data/imdb"), label="label", limit={"train": 400, "test": 300})
    train = table(rows, "train")
    assert rows.meta["splits"] == {"train": 400, "test": 300}
    assert rows.meta["dropped"] == {"limit": 50000 - 700}
    assert 150 < sum(train["label"]) < 250
    assert train["label"] == sorted(train["label"])
    small = table(bench.rows(source=str(shared / "data/imdb"), label="label", limit=100), "train")
    assert set(small["text"]) <= set(train["text"])


def test_book_reviews_from_csv_by_rule(bench, shared, tmp_path):
    books = pq.read_table(shared / "data/amazon_books/reviews.parquet")
    pyarrow.csv.write_csv(books, tmp_path / "books.csv")
    rows = bench.rows(
        source=str(tmp_path / "books.csv"),
        text=["title", "review_text"],
        label="rating >= 4",
        split={"validation": 0.1, "test": 0.1},
    )
    assert rows.meta["labels"] == ["rating < 4", "rating >= 4"]
    assert rows.meta["text"] == ["title", "review_text"]
    sizes = rows.meta["splits"]
    assert sum(sizes.values()) == 2000 and 150 < sizes["validation"] < 250 and 150 < sizes["test"] < 250
    read = [row for split in rows.meta["splits"] for row in zip(*table(rows, split).values(), strict=True)]
    theirs = zip(*(books[name].to_pylist() for name in ("title", "review_text", "label")), strict=True)
    assert sorted(read) == sorted(theirs)


def test_dolly_keeps_all_columns_when_none_is_named(bench, shared):
    rows = bench.rows(source=str(shared / "data/dolly15k"), dedupe=True)
    assert rows.meta["columns"] == ["instruction", "context", "response", "category"]
    assert rows.meta["splits"] == {"train": 15011 - 8}
    assert rows.meta["dropped"] == {"duplicate": 8}
    made = bench.rows(source=str(shared / "data/dolly15k"), split={"validation": 0.02, "test": 0.02})
    assert made.meta["leakage"] == {"train/validation": 0, "train/test": 0, "validation/test": 0}
    assert sum(made.meta["splits"].values()) == 15011


def test_a_file_that_changes_meanwhile_is_refused(bench, tmp_path):
    from trnflow.tasks.load_data import load_data

    path = write(tmp_path / "a.csv", REVIEWS)
    config = DataConfig(source=str(path), text="text", split={})
    source = bench.source(config)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=r"a\.csv changed while"):
        load_data(config, source, out=bench.workdir())


def test_stage_is_deterministic_and_leaves_torch_alone(bench, shared):
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from tests.helpers.data_stages import new_bench\n"
        "rows = new_bench(Path(sys.argv[1])).rows(source=sys.argv[2], label='label', dedupe=True, limit=500)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    outputs = []
    for seed in ("1", "2"):
        root = bench.root / seed
        root.mkdir()
        command = [sys.executable, "-c", code, str(root), str(shared / "data/emotion")]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=Path(__file__).parents[3])
        outputs.append(files(root / "out-1"))
    assert outputs[0] == outputs[1]
