"""Texts that a program read in a wrong encoding: remarked where they are many, and in no real set."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.data.load.rows import write
from tests.helpers.data_stages import new_bench
from trnflow.tasks.data.load.garbled import GarbledTexts

TEXTS = [
    "un café déjà vu",
    "straße, grün",
    "it’s – “fine”",
    "£20 off",
    "ÉCOLE",
    "ÖL",
    "всё хорошо",
    "日本語",
    "한국어",
    "हिन्दी",
]


def remark(texts: list[str], split: str = "train") -> str | None:
    found = GarbledTexts()
    for begin in range(0, len(texts), 100):
        found.look_at([pa.array(texts[begin : begin + 100]), pa.array([1.0] * len(texts[begin : begin + 100]))])
    return found.remark(split, len(texts))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_a_wrong_encoding_are_remarked(text: str, encoding: str) -> None:
    rows = ["plain"] * 395 + [text.encode().decode(encoding, "replace")] * 5
    assert (remark(rows) or "").startswith("train: 5 of 400 rows hold signs such as ")
    assert remark(rows * 3, "test") and remark(["plain"] * 2000 + rows[-5:]) is None, "few rows are one writer's own"


def test_texts_as_they_were_written_are_not() -> None:
    others = [
        "MAÇÃ E PÃO",
        "«MAÇÃ»",
        "“MAÇÃ”",
        "IRMÃ\u00a0MAIS",
        "« Âge »",
        "« cliché\u00a0», « voilà\u00a0! »",
        "ESPAÑA: «AÑO…»",
        "Â vùng",
        "Привет",
        "你好",
        "naïve Ã la carte",
        "15 € – 20 €",
        "â la",
        "😀",
    ]
    assert remark([*TEXTS, *others] * 20) is None


def test_signs_of_the_first_of_three_rows_are_shown_and_two_rows_are_no_remark() -> None:
    first, *others = (text.encode().decode("latin-1") for text in ("£1", "é", "Ö"))
    said = remark([first, *["plain"] * 200, *others]) or ""
    assert said.startswith("train: 3 of 203 rows hold signs such as 'Â£'")
    assert remark(others) is None
    found = GarbledTexts()
    found.look_at([pa.array([first, "plain", None], pa.large_string())])
    assert (found.count, found.first) == (1, "Â£")


def test_a_file_that_was_saved_in_a_wrong_encoding_is_remarked_when_it_is_read(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    columns = {
        "text": [*(f"{TEXTS[0]} {number}".encode().decode("cp1252") for number in range(9)), None, None, None],
        "label": ["a", "b", "c"] * 4,
    }
    bench.rows(source=str(write(tmp_path / "data/train.csv", columns).parent), text="text", nulls="drop")
    (told,) = [warning for warning in bench.warnings() if "hold signs" in warning]
    assert told.startswith("train: 9 of 9 rows hold signs such as 'Ã©', UTF-8 that")


def test_no_real_set_is_remarked(shared: Path) -> None:
    files = [
        file for file in (shared / "data").rglob("*") if file.suffix in (".csv", ".tsv", ".jsonl", ".txt", ".conll")
    ]
    assert len(files) > 10
    for file in files:
        assert remark(file.read_text(encoding="utf-8", errors="replace").split("\n")) is None, file
