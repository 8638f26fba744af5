"""Splits whose texts are unlike those of train in a way that nothing else finds: remarked, and of no real set."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.load.rows import write
from tests.helpers.data_stages import new_bench
from trnflow.tasks.data.format.unlike_splits import ACCENTS, HTML, unlike_splits

FRENCH = ["un café déjà vu", "l’élève est à l’école", "où est la fenêtre", "très bien"]


def files(folder: Path, **splits: dict[str, list[str]]) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    for name, columns in splits.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return {name: folder / f"{name}.parquet" for name in splits}


def test_exchanged_columns_of_a_pair(tmp_path: Path, shared: Path) -> None:
    """Real instructions and their answers, as queries and passages."""
    rows = pq.read_table(shared / "data/dolly15k/train.parquet").slice(0, 1200).to_pydict()
    query, passage = rows["instruction"], rows["response"]
    for test in (slice(1000, 1200), slice(1000, 1030)):
        bench = new_bench(tmp_path / str(test.stop))
        bench.root.mkdir()
        write(bench.root / "data/train.csv", {"query": query[:1000], "passage": passage[:1000]})
        write(bench.root / "data/test.csv", {"query": passage[test], "passage": query[test]})
        write(bench.root / "data/validation.csv", {"query": query[test], "passage": passage[test]})
        read = bench.rows(source=str(bench.root / "data"), text="query", columns={"passage": "passage"})
        bench.texts(read, task="embedding", text_pair="passage")
        (told,) = [warning for warning in bench.warnings() if "exchanged" in warning]
        assert re.match(
            r"test: query is longer than passage in 7\d% of the rows, and shorter in 75% of those of train", told
        )


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (lambda text: f"<p>{text}</p>", "0% of the rows hold HTML"),
        (lambda text: html.escape(f"{text} & 'more'"), "0% of the rows hold HTML"),
        (lambda text: text.replace(" ", "<br />", 1), "0% of the rows hold HTML"),
        (lambda text: unicodedata.normalize("NFD", text), "0% of the rows have accents apart from their letters"),
    ],
)
def test_signs_that_one_split_has(tmp_path: Path, change: Callable[[str], str], remark: str) -> None:
    plain, changed = [f"{text} {n}" for n in range(20) for text in FRENCH], [change(text) for text in FRENCH * 10]
    both = [*files(tmp_path / "a", train={"text": plain}, test={"text": changed}).items()]
    signs = HTML if "HTML" in remark else ACCENTS
    (told,) = unlike_splits(dict(both), "text", None, signs)
    assert told.startswith("test: 100% ") or told.startswith("test: 75% ")
    (told,) = unlike_splits(dict(zip(("test", "train"), (file for _, file in both), strict=True)), "text", None, signs)
    assert told.startswith(f"test: {remark}")
    few = files(tmp_path / "c", train={"text": plain}, test={"text": changed[:19]})
    same = files(tmp_path / "d", train={"text": changed}, test={"text": changed})
    assert not [*unlike_splits(few, "text", None, signs), *unlike_splits(same, "text", None, signs)]


def test_few_rows_with_signs_and_code_are_not_remarked(tmp_path: Path) -> None:
    plain = [f"a <- b if x < 3 and y > {n} & AT&T; R&D <3 {text}" for n in range(20) for text in FRENCH]
    some = [*plain, *["<br>"] * 60]
    found = files(tmp_path / "a", train={"text": plain}, test={"text": some}, validation={"text": FRENCH * 9})
    assert not [*unlike_splits(found, "text", None)]


def splits_of(shared: Path) -> dict[str, dict[str, dict[str, list[Any]]]]:
    data = shared / "data"

    def lines(file: str) -> list[str]:
        return [line for line in (data / file).read_text(encoding="utf-8").splitlines() if line.strip()]

    def sts(name: str) -> dict[str, list[str]]:
        cells = [line.split("\t") for line in lines(f"stsbenchmark/sts-{name}.csv")]
        return {"text": [row[5] for row in cells], "text_pair": [row[6] for row in cells]}

    return {
        "sts": {name: sts(file) for name, file in (("train", "train"), ("validation", "dev"), ("test", "test"))},
        **{
            folder: {
                name: {"text": pq.read_table(data / folder / f"{name}.parquet").column("text").to_pylist()[::10]}
                for name in names
            }
            for folder, names in (("imdb", ("train", "test")), ("emotion", ("train", "validation", "test")))
        },
        **{
            folder: {name.replace("dev", "validation"): {"text": lines(f"{folder}/{name}.{end}")} for name in names}
            for folder, end, names in (
                ("goemotions", "tsv", ("train", "dev", "test")),
                ("sentiment_amharic", "tsv", ("train", "validation", "test")),
                ("wnut17", "conll", ("train", "validation", "test")),
            )
        },
    }


def test_no_real_set_is_remarked(shared: Path, tmp_path: Path) -> None:
    for name, splits in splits_of(shared).items():
        second = "text_pair" if name == "sts" else None
        assert [*unlike_splits(files(tmp_path / name, **splits), "text", second, HTML | ACCENTS)] == [], name
