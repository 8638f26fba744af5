"""Names of several labels a row that look alike, or are made of others: remarked, and of no real set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data.load.rows import write
from tests.helpers.data_stages import new_bench
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.label_names import alike, made_of_others, say_the_same


def told(root: Path, labels: list[Any], kind: str = "csv", **format: Any) -> list[str]:
    bench = new_bench(root)
    file = write(root / f"data/train.{kind}", {"text": [f"text {n}" for n in range(len(labels))], "tags": labels})
    rows = bench.rows(source=str(file.parent), columns={"text": "text", "tags": "tags"}, text="text")
    bench.texts(rows, target="tags", **format)
    return bench.warnings()


@pytest.mark.parametrize(
    ("labels", "kind"), [(["joy,love", "Joy", "love"], "csv"), ([["joy", "love"], ["Joy"], ["love"]], "jsonl")]
)
def test_several_labels_of_a_row_that_look_alike(tmp_path: Path, labels: list[Any], kind: str) -> None:
    (remark,) = told(tmp_path, labels, kind, task="multi_label")
    assert remark == "labels that differ by capitals alone count as 2: 'Joy' and 'joy'"


def test_yes_and_no_in_several_spellings(tmp_path: Path) -> None:
    labels = ["yes", "no", "true", "0", "1"] * 2
    bench = new_bench(tmp_path)
    file = write(tmp_path / "data/train.csv", {"text": [f"text {n}" for n in range(10)], "spam": labels})
    bench.rows(source=str(file.parent), text="text", label="spam")
    (remark,) = bench.warnings()
    assert remark == (
        "5 labels say yes ('1', 'true', 'yes') or no ('0', 'no'): they count as 5 classes; write one of each"
    )
    for sound in (["0", "1"], ["0", "1", "2"], ["no", "yes", "maybe"], ["f", "m", "n"], ["f", "n", "no"]):
        assert not [*say_the_same(sound)]


def test_a_type_that_only_a_made_split_has_is_known(tmp_path: Path) -> None:
    cells = {
        "words": [f"word{n} here" for n in range(40)],
        "tags": [f"B-{'rare' * (n % 9 == 0)}{n} O" for n in range(40)],
    }
    bench = new_bench(tmp_path / "bench")
    bench.root.mkdir()
    write(bench.root / "rows/train.csv", cells)
    rows = bench.rows(source=str(bench.root / "rows"), split={"validation": 0.2, "test": 0.2})
    texts = bench.texts(rows, task="token_classification", words="words", target="tags")
    assert len(texts.meta["labels"]) == 1 + 2 * 40


def test_a_label_that_only_a_made_split_has_is_known(tmp_path: Path) -> None:
    """Of few rows and many labels one is alone in its label; a split that is given may hold a misspelt one."""
    cells = [f"{name},{other}" for name in "abcdefgh" for other in ("x", "y", "z", f"only {name}")]
    for source, made in (("data", True), ("given", False)):
        bench = new_bench(tmp_path / source)
        bench.root.mkdir()
        write(bench.root / "rows/train.csv", {"text": [f"text {n}" for n in range(len(cells))], "tags": cells})
        if not made:
            write(bench.root / "rows/test.csv", {"text": ["text"], "tags": ["only i"]})
        split = {"split": {"validation": 0.2, "test": 0.2}} if made else {}
        settings = {"text": "text", "columns": {"tags": "tags"}, **split}
        rows = bench.rows(source=str(bench.root / "rows"), **settings)
        assert rows.meta.get("made") == (["test", "validation"] if made else None)
        if made:
            assert len(bench.texts(rows, task="multi_label", target="tags").meta["labels"]) == 8 + 3 + 8
        else:
            with pytest.raises(DataError, match="the label 'only i' in tags is none of train's"):
                bench.texts(rows, task="multi_label", target="tags")


def test_few_of_many_are_shown() -> None:
    remarks = [*alike([f"{name}{number}" for number in range(30) for name in ("Joy", "joy")])]
    assert len(remarks) == 6 and remarks[-1] == "labels that look alike: 25 more, such as 'Joy29' and 'joy29'"


def test_types_of_tagged_words_that_look_alike(tmp_path: Path) -> None:
    spans = [[{"start": 0, "end": 4, "label": name}] for name in ("Person", "person ")]
    (remark,) = told(tmp_path, spans, "jsonl", task="token_classification", words=None)
    assert remark == "labels that differ by surrounding blanks and capitals alone count as 2: 'Person' and 'person '"


def test_labels_that_another_sign_keeps_apart(tmp_path: Path) -> None:
    (remark,) = told(tmp_path, ["joy love", "joy", "love anger", "anger joy", "love", "anger"], task="multi_label")
    assert remark.startswith(
        "3 of 6 labels are made of others, such as 'anger joy': are these several labels of a row?"
    )


def test_sound_names_are_not_remarked(shared: Path) -> None:
    emotions = (shared / "data/goemotions/labels.txt").read_text().split()
    genres = ["action", "science", "fiction", "science fiction", "family", "drama", "romance", "comedy", "crime", "war"]
    arxiv = ["cs.AI", "cs.CL", "stat.ML", "math.ST", "cs.LG", "q-bio.QM", "cs", "stat", "math", "1", "10", "01x"]
    for names in (emotions, genres, arxiv):
        assert [*alike(names), *made_of_others(names), *say_the_same(names)] == []


def test_a_few_of_many_labels_that_are_made_of_others_are_no_remark() -> None:
    made, letters = ["a b", "c d", "e f"], [*"abcdefghijklmnopqrst"]
    assert not [*made_of_others([*letters, *made])] and [*made_of_others([*letters[:6], *made])]
    assert not [*made_of_others([*letters[:4], *made[:2]])], "two are too few"
