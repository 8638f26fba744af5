"""What rows of `token_classification` may hold, how words become labels of tokens, and what is refused with row and value."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_counts import DropCounts, report
from trnflow.tasks.data.format.row_makers import CUT_WORD, maker_of
from trnflow.tasks.data.format.templates import no_limit
from trnflow.tasks.data.load.readers import open_file
from trnflow.tasks.data.tables import label_type
from trnflow.tasks.data.tokenization.token_encoder import TokenEncoder, first_pieces
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import ConfigError, DataError, ModelError
from trnflow.tasks.kinds.kind import IGNORED
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.tagged_words import joined_words

NESTED = ["words", "tags", "spans"]
SENTENCE = {"words": ["Ann", "sits", "in", "New", "York"], "tags": ["B-name", "O", "O", "B-place", "I-place"]}
LABELS = ["O", "B-name", "I-name", "B-place", "I-place"]
TEXT = "Ann Lee's cat in 東京, 2 am"


def examples(rows: list[Any], names: list[str] | None = None, **settings: Any) -> tuple[list[str] | None, list[Any]]:
    """(the names of the outputs, the example of each row)."""
    config = FormatConfig(task="token_classification", **settings)
    given = [{name: json.dumps(v) if name in NESTED else v for name, v in row.items()} for row in rows]
    kind = FORMATS[config.task]
    labels = names or kind.labels_of(config, lambda: given, NESTED)
    make = kind.example_of(config, labels or [], NESTED, lambda row, where: {"text": row["text"]})
    return labels, [make(row, f"row {number}") for number, row in enumerate(given, 1)]


def in_words(rows: list[Any], names: list[str] | None = None, **settings: Any) -> tuple[list[str] | None, list[Any]]:
    return examples(rows, names, words="words", target="tags", **settings)


def in_spans(*spans: Any, names: list[str] | None = None) -> tuple[list[str] | None, list[Any]]:
    return examples([{"text": TEXT, "spans": [*spans]}], names, target="spans")


def tagged(example: dict[str, Any], labels: list[str]) -> list[tuple[str, str]]:
    return [(example["text"][w["start"] : w["end"]], labels[w["label"]]) for w in example["label"]]


def test_words_and_tags() -> None:
    labels, (example, nothing) = in_words([SENTENCE, {"words": [], "tags": []}])
    assert labels == LABELS and example["text"] == "Ann sits in New York" and nothing is None
    assert tagged(example, labels) == list(zip(SENTENCE["words"], SENTENCE["tags"], strict=True))
    numbers = {"words": SENTENCE["words"], "tags": [3, 0, "0", 1, 2]}
    labels, (same,) = in_words([numbers], labels=["O", "B-place", "I-place", "B-name", "I-name"])
    assert tagged(same, labels or []) == tagged(example, LABELS)
    cells = {"text": "", "words": "Ann sits", "tags": "B-name O"}
    config = FormatConfig(task="token_classification", words="words", target="tags")
    made = FORMATS["token_classification"].example_of(config, LABELS, [], None)(cells, "row 1")
    assert made is not None and tagged(made, LABELS) == [("Ann", "B-name"), ("sits", "O")]


def test_a_cell_of_words_is_a_list_or_a_text() -> None:
    cells = (["Oslo", 9], '["Oslo", 9]', "Oslo 9")
    assert {joined_words(cell) for cell in cells} == {"Oslo 9"}
    assert joined_words("[sic] Oslo") == "[sic] Oslo"
    assert joined_words("[sic]") == "[sic]"


def test_lists_as_pandas_writes_them_into_a_csv() -> None:
    """Python's quotes, not JSON's: of words that hold one the other."""
    words, tags = ["It's", "Ann", '"'], ["O", "B-name", "O"]
    config = FormatConfig(task="token_classification", words="words", target="tags")
    kind, cells = FORMATS["token_classification"], {"words": str(words), "tags": str(tags)}
    labels = kind.labels_of(config, lambda: [cells], [])
    made = kind.example_of(config, labels or [], [], None)(cells, "row 1")
    assert made is not None and tagged(made, labels or []) == list(zip(words, tags, strict=True))
    assert joined_words(str(words)) == made["text"]
    for spans in ([(0, 7, "name")], [{"start": 0, "end": 7, "label": "name"}]):
        row = {"text": TEXT, "spans": str(spans)}
        config = FormatConfig(task="token_classification", target="spans")
        made = kind.example_of(config, ["O", "B-name", "I-name"], [], lambda row, where: {"text": row["text"]})(
            row, "row 1"
        )
        assert made is not None and tagged(made, ["O", "B-name", "I-name"])[:2] == [
            ("Ann", "B-name"),
            ("Lee", "I-name"),
        ]


def test_spans_in_all_their_forms_cut_words() -> None:
    spans = [{"start": 17, "end": 19, "type": "place"}, {"start": 0, "end": 7, "label": "name"}]
    labels, (example,) = in_spans(*spans)
    assert labels == LABELS
    assert tagged(example, LABELS) == [
        ("Ann", "B-name"), ("Lee", "I-name"), ("'", "O"), ("s", "O"), ("cat", "O"), ("in", "O"), ("東", "B-place"),
        ("京", "I-place"), (",", "O"), ("2", "O"), ("am", "O"),
    ]  # fmt: skip
    assert in_spans([0, 7, "name"], [17, 19, "place"])[1] == [example]
    assert in_spans(names=LABELS)[1][0]["label"][0]["label"] == 0
    cut = in_spans([1, 2, "name"])[1][0]
    assert tagged(cut, ["O", "B-name", "I-name"])[:3] == [("A", "O"), ("n", "B-name"), ("n", "O")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": ["a", "b"], "tags": ["O"]}, "row 1: 2 words in words and 1 tags in tags"),
        ({"words": ["a"], "tags": ["E-name"]}, "row 1: the tag 'E-name' is no IOB"),
        ({"words": ["a"], "tags": ["b-name"]}, "row 1: the tag 'b-name' is no IOB"),
        ({"words": ["a"], "tags": ["B-firm"]}, "row 1: the tag 'B-firm' in tags is none of train's"),
        ({"words": ["a"], "tags": [3]}, "row 1: the tag 3 in tags is a number without a name"),
        ({"words": [" "], "tags": ["O"]}, "row 1: word 1 of words is ' ', no text"),
        ({"words": ["a", None], "tags": ["O", "O"]}, "row 1: word 2 of words is None, no text"),
        ({"words": {"a": 1}, "tags": ["O"]}, "row 1: words is no list"),
        ({"tags": ["O"]}, "row 1: there is no column words"),
    ],
)
def test_words_and_tags_that_are_none_are_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        in_words([row], LABELS)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ([20, 99, "name"], "the span 20 to 99 \\(name\\) lies outside the text of 25 characters"),
        ([5, 5, "name"], "the span 5 to 5 \\(name\\) lies outside"),
        ([-1, 2, "name"], "lies outside"),
        ([3, 4, "name"], "the span 3 to 4 \\(name\\) holds no word"),
        ([6, 9, "name"], "the spans 0 to 7 \\(name\\) and 6 to 9 \\(name\\) overlap"),
        ([8, 9, "firm"], "the tag 'B-firm' in spans is none of train's"),
        (
            {"start": 8, "end": 9, "label": "name", "text": "'s"},
            'the span 8 to 9 \\(name\\) says "\'s", and there stands',
        ),
        ([8, 9], "\\[8, 9\\] in spans is no span"),
        ({"start": "8", "end": 9, "label": "name"}, "is no span"),
        (True, "True in spans is no span"),
    ],
)
def test_spans_that_are_none_are_named(span: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"row 1: .*{message}"):
        in_spans([0, 7, "name"], span, names=LABELS)


def test_a_span_that_says_the_text_it_holds_is_taken() -> None:
    span = {"start": 17, "end": 19, "label": "place", "text": "東京"}
    assert in_spans(span) == in_spans([17, 19, "place"])
    assert in_spans({"start": 0, "end": 7, "label": "name", "text": f" {TEXT[:7].upper()}\n"}) == in_spans(
        [0, 7, "name"]
    )


@pytest.mark.parametrize(("text", "end"), [("서울에서 만났다", 2), ("5kg of rice", 1), ("Zu\u0308rich ruft", 7)])
def test_a_particle_or_a_unit_behind_a_span_is_no_cut_word(text: str, end: int) -> None:
    config = FormatConfig(task="token_classification", words=None, target="spans")
    meta: Any = {"text": ["text"], "columns": ["text", "spans"], "nested": ["spans"], "labels": LABELS}
    span = {"start": 0, "end": end, "label": "place", "text": unicodedata.normalize("NFC", text[:end])}
    made = maker_of(config, meta, None, no_limit)({"text": text, "spans": json.dumps([span])}, "row 1")
    assert made.examples and not made.notes


@pytest.mark.parametrize(
    ("span", "cut"), [([0, 2, "name"], "An|n"), ([1, 7, "name"], "A|nn"), ([0, 7, "name"], ""), ([17, 18, "place"], "")]
)
def test_a_word_that_a_span_cuts_is_a_note_of_its_row(span: Any, cut: str) -> None:
    config = FormatConfig(task="token_classification", words=None, target="spans")
    meta: Any = {"text": ["text"], "columns": ["text", "spans"], "nested": ["spans"], "labels": LABELS}
    row = {"text": TEXT, "spans": json.dumps([span])}
    notes = maker_of(config, meta, None, no_limit)(row, "row 1").notes
    assert notes == ({CUT_WORD: cut} if cut else {})
    told: list[str] = []
    tally = DropCounts()
    tally.count(maker_of(config, meta, None, no_limit)(row, "row 1"), "row 1")
    report({"train": tally}, SimpleNamespace(warn=told.append, info=told.append))  # type: ignore[arg-type]
    assert bool(told) == bool(cut) and cut in "".join(told)


def test_train_decides_the_tags_and_says_which_row_has_none() -> None:
    rows = [SENTENCE, {"words": ["a"], "tags": ["S-name"]}]
    with pytest.raises(DataError, match="split train row 2: the tag 'S-name' is no IOB"):
        in_words(rows)
    with pytest.raises(DataError, match="no row of train has a tag but O in tags"):
        in_words([{"words": ["a"], "tags": ["O"]}])
    assert in_words([{"words": ["a"], "tags": ["I-b"]}])[0] == ["O", "B-b", "I-b"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "classification", "words": "w"}, "`words` is for token_classification"),
        ({"task": "token_classification", "target": ["a", "b"]}, "`target` is one column"),
        ({"task": "token_classification", "prompt_template": "{{ text }}"}, "make another text"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FormatConfig(**settings)


def test_missing_columns_are_refused_before_rows_are_read() -> None:
    kind, meta = FORMATS["token_classification"], {"labels": None, "columns": ["text", "tags"], "text": []}
    for settings, message in (
        ({"words": "words", "target": "tags"}, "the rows have no column words"),
        ({"words": "text", "target": "x"}, "the rows have no column x"),
        ({"target": "tags"}, "reads words and tags, or one text with spans"),
    ):
        with pytest.raises(ConfigError, match=message):
            kind.check_rows(FormatConfig(task="token_classification", **settings), meta)


def encoder(words: list[str], folder: Path, length: int = 32, **options: Any) -> TokenEncoder:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(entries))
    return TokenEncoder(read_tokenizer(folder), length, "truncate", **options)


def encoded(made: TokenEncoder, *rows: tuple[str, list[tuple[int, int, int]]]) -> Any:
    kind = label_type(FORMATS["token_classification"])
    label = [[dict(zip(("start", "end", "label"), word, strict=True)) for word in words] for _, words in rows]
    return made.encode(pa.table({"text": [text for text, _ in rows], "label": pa.array(label, kind)}))


def test_the_first_piece_of_a_word_is_labelled_as_transformers_counts_words(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    words = ["unbelievable", "sits", "\u200b", "in", "New-York", "unknown"]
    pieces = ["un", "##believ", "##able", "sits", "in", "new", "-", "york"]
    made = encoder(pieces, tmp_path / "bert")
    starts = [sum(len(word) + 1 for word in words[:at]) for at in range(len(words))]
    spans = [(start, start + len(word), at) for at, (start, word) in enumerate(zip(starts, words, strict=True))]
    found = encoded(made, (" ".join(words), spans))
    whole = BertTokenizerFast(str(tmp_path / "bert/vocab.txt"))(words, is_split_into_words=True)
    seen: set[int | None] = {None}
    wanted = [IGNORED if word in seen or seen.add(word) else word for word in whole.word_ids()]  # type: ignore[func-returns-value]
    assert found.ids.tolist() == whole["input_ids"] and found.extra.tolist() == wanted
    short = encoded(encoder(pieces, tmp_path / "bert", 5), (" ".join(words), spans))
    assert short.extra.tolist() == [IGNORED, *found.extra.tolist()[1:4], IGNORED] and short.lengths[0] == len(found.ids)


def test_a_byte_level_tokenizer_counts_the_blank_to_the_word(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(
        models.BPE(vocab={c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "!"}))
    made = TokenEncoder(read_tokenizer(tmp_path), 32, "truncate")
    found = encoded(made, ("ab cd é", [(0, 2, 1), (3, 5, 2), (6, 7, 3)]))
    assert found.extra.tolist() == [1, IGNORED, IGNORED, 2, IGNORED, IGNORED, 3, IGNORED]
    assert made.places("ab", 2) == [(0, 1), (1, 2)]


def test_a_tokenizer_without_places_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"slow")
    with pytest.raises(ModelError, match=r"neither tokenizer\.json nor vocab\.txt"):
        read_tokenizer(tmp_path)


CONLL = {
    "two columns and tabs": "Ann\tB-name\nsits\tO\n\nBob\tB-name\n",
    "blanks, windows' line ends, tabs in separating lines": "Ann  B-name\r\nsits O\r\n\t\r\nBob B-name",
    "four columns": "-DOCSTART- -X- -X- O\n\nAnn NNP B-NP B-name\nsits VB B-VP O\n\nBob NNP B-NP B-name\n\n",
    "comments": "# id 1\nAnn\tx\tB-name\nsits\tx\tO\n\n\n# id 2\n# a longer one\nBob\tx\tB-name\n",
}


@pytest.mark.parametrize("text", CONLL.values(), ids=CONLL)
def test_conll_files(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_bytes(text.encode())
    rows = open_file(tmp_path / "t.conll", "conll", "t.conll")
    assert rows.schema.names == ["words", "tags"]
    assert [row for batch in rows.batches(["tags", "words"]) for row in batch.to_pylist()] == [
        {"words": ["Ann", "sits"], "tags": ["B-name", "O"]}, {"words": ["Bob"], "tags": ["B-name"]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Ann B-x\nsits\n", "t.conll line 2 has a word and no tag: 'sits'"),
        ("Ann B-x\na b c\n", "line 2 has 3 columns, the lines before 2"),
    ],
)
def test_a_broken_conll_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text(text)
    with pytest.raises(DataError, match=message):
        [*open_file(tmp_path / "t.conll", "conll", "t.conll").batches(["words"])]


def test_hash_is_a_word(tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text("Ann B-x\n# O\n#tag O\n")
    (batch,) = open_file(tmp_path / "t.conll", "conll", "t.conll").batches(["words"])
    assert batch.to_pylist() == [{"words": ["Ann", "#", "#tag"]}]


def test_lists_of_class_numbers_have_the_names_that_datasets_declared(tmp_path: Path) -> None:
    import datasets

    names = datasets.ClassLabel(names=["O", "B-name", "I-name"])
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(names)})
    rows = [{"tokens": ["Ann", "sits"], "ner_tags": [1, 0]}, {"tokens": [], "ner_tags": []}]
    datasets.Dataset.from_list(rows, features=features).to_parquet(str(tmp_path / "t.parquet"))
    opened = open_file(tmp_path / "t.parquet", "parquet", "t.parquet")
    read = [row for batch in opened.batches(["ner_tags", "tokens"]) for row in batch.to_pylist()]
    assert read == [{"tokens": ["Ann", "sits"], "ner_tags": ["B-name", "O"]}, {"tokens": [], "ner_tags": []}]
    table = pa.table(
        {"tokens": [["a"]], "ner_tags": [[7]]},
        opened.schema.with_metadata(opened.schema.metadata)
        .remove(1)
        .append(pa.field("ner_tags", pa.list_(pa.int64()))),
    )
    pa.parquet.write_table(table, tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r"bad\.parquet row 1: ner_tags holds 7, and its classes are numbered 0 to 2"):
        [*open_file(tmp_path / "bad.parquet", "parquet", "bad.parquet").batches(["ner_tags"])]


def test_a_word_that_no_token_begins_gives_its_label_to_none() -> None:
    words = [{"start": 2, "end": 4, "label": 1}, {"start": 4, "end": 6, "label": 2}]
    assert first_pieces("abXcdEf", [(0, 4), (4, 6), (6, 7)], words) == [IGNORED, 2, IGNORED]
    assert first_pieces("abXcdEf", [(0, 2), (2, 3), (3, 5), (5, 7)], words) == [IGNORED, 1, IGNORED, 2]


def test_a_blank_that_separates_nothing_is_a_word(tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text("Ann B-x\n\u00a0 O\n\u3000 O\n", encoding="utf-8")
    (batch,) = open_file(tmp_path / "t.conll", "conll", "t.conll").batches(["words"])
    assert batch.to_pylist() == [{"words": ["Ann", "\u00a0", "\u3000"]}]


def test_labels_of_spans_may_be_given_as_types_or_as_tags() -> None:
    for given in (("name", "place"), ("O", "B-name", "I-name", "B-place")):
        config = FormatConfig(task="token_classification", target="spans", labels=given)
        assert FORMATS[config.task].labels_of(config, list, []) == LABELS
