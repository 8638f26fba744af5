"""What `trnflow new` takes for what, in real files and in files of every kind: the right columns, or a question."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trnflow.flows.authoring.answers import preference
from trnflow.flows.authoring.choose import choose
from trnflow.flows.authoring.draft import Draft, Question
from trnflow.flows.authoring.headers import refuse_tags
from trnflow.flows.authoring.look import Column, _read, _read_split, look
from trnflow.flows.authoring.own_code import EXAMPLES, SHARE
from trnflow.flows.authoring.tagged import words_and_tags
from trnflow.flows.authoring.write import SCRATCH
from trnflow.flows.cli.new_commands import _source
from trnflow.tasks.data.load.config import SourceConfig
from trnflow.tasks.data.load.readers import RowReader, open_table
from trnflow.tasks.errors import ConfigError, DataError, TrnflowError
from trnflow.tasks.sources.resolver import Resolver

TEXT = "the a printer order of my late broken box was sent again after two days and nobody answers why is it so"
WORDS = TEXT.split()


def sentence(seed: int, words: int = 12) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words)) + f" {seed}"


def table(*columns: str, rows: int = 60, mark: str = ",", **values: Any) -> bytes:
    """A CSV file. values: {column: a list that is repeated, or what makes a value of the row's number}."""
    make = {"id": str, "text": sentence, "title": lambda n: sentence(n, 5)} | values
    lines = [mark.join(columns)]
    for n in range(rows):
        cells = [make[name](n) if callable(make[name]) else make[name][n % len(make[name])] for name in columns]
        lines.append(mark.join(map(str, cells)))
    return ("\n".join(lines) + "\n").encode()


def lines(make: Any, rows: int = 60) -> bytes:
    return "\n".join(json.dumps(make(n), ensure_ascii=False) for n in range(rows)).encode()


def taken(folder: Path, name: str, content: bytes, given: dict[str, Any] | None = None) -> Draft:
    (folder / name).write_bytes(content)
    data = {key: value for key, value in (given or {}).get("data", {}).items() if key in ("format", "splits")}
    looked = look(SourceConfig(source=str(folder / name), **data), Resolver(folder / "home"))
    return choose(looked, given or {})


def roles(draft: Draft) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for role, column in draft.taken:
        found.setdefault(role, []).append(column.name)
    return found


KINDS = ["bug", "wish", "question"]
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello to you"}]
TALK = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hello to you"}]

SOUND = {
    "tickets": ("t.csv", table("id", "body", "category", body=sentence, category=KINDS),
                {"text": ["body"], "label": ["category"]}, "classification"),
    "no known name": ("t.csv", table("id", "what", "kind_of", what=sentence, kind_of=KINDS),
                      {"text": ["what"], "label": ["kind_of"]}, "classification"),
    "a title and a body": ("t.csv", table("title", "text", "label", label=KINDS),
                           {"text": ["text"], "label": ["label"]}, "classification"),
    "two usual names": ("t.csv", table("text", "category", "label", category=KINDS, label=KINDS),
                        {"text": ["text"], "label": ["label"]}, "classification"),
    "a title and a body of no known name": ("t.csv", table("title", "what", "label", what=sentence, label=KINDS),
                                            {"text": ["what"], "label": ["label"]}, "classification"),
    "whole floats": ("t.jsonl", lines(lambda n: {"text": sentence(n), "stars": float(n % 5)}),
                     {"text": ["text"], "label": ["stars"]}, "classification"),
    "whole floats of a csv": ("t.csv", table("text", "stars", stars=["1.0", "2.0", "3.0"]),
                              {"text": ["text"], "label": ["stars"]}, "classification"),
    "truth values": ("t.jsonl", lines(lambda n: {"text": sentence(n), "spam": n % 3 == 0}),
                     {"text": ["text"], "label": ["spam"]}, "classification"),
    "a pair": ("t.csv", table("premise", "hypothesis", "label", premise=sentence, hypothesis=lambda n: sentence(n + 99),
                              label=[0, 1, 2]),
               {"text": ["premise"], "text_pair": ["hypothesis"], "label": ["label"]}, "classification"),
    "queries and passages": ("t.csv", table("query", "passage", "label", query=lambda n: sentence(n // 5),
                             passage=sentence, label=[1, 0, 0, 0, 0]),
                             {"text": ["query"], "text_pair": ["passage"], "target": ["label"]}, "reranker"),
    "a pair by letters": ("t.csv", table("text_a", "text_b", "same", text_a=sentence, text_b=lambda n: sentence(n + 99),
                                         same=[0, 1]),
                          {"text": ["text_a"], "text_pair": ["text_b"], "label": ["same"]}, "classification"),
    "triplets": ("t.csv", table("anchor", "positive", "negative", anchor=sentence, positive=lambda n: sentence(n + 99),
                                negative=lambda n: sentence(n + 7)),
                 {"text": ["anchor"], "text_pair": ["positive"], "negative": ["negative"]}, "embedding"),
    "UltraFeedback": ("t.jsonl", lines(lambda n: {"prompt": sentence(n), "score_chosen": 8.5,
                                                 "chosen": MESSAGES, "rejected": [*MESSAGES[:1], TALK[1]]}),
                      {"prompt": ["prompt"], "chosen": ["chosen"], "rejected": ["rejected"]}, "preference"),
    "answers to a conversation": ("t.json", json.dumps([{"conversations": TALK[:1], "chosen": TALK[1], "rejected": TALK[1]}
                                                        for n in range(60)]).encode(),
                                  {"prompt": ["conversations"], "chosen": ["chosen"], "rejected": ["rejected"]}, "preference"),
    "LLaMA-Factory's pairs": (
        "t.jsonl", lines(lambda n: {"chosen_messages": MESSAGES, "rejected_messages": MESSAGES, "tools": "[]"}),
        {"chosen": ["chosen_messages"], "rejected": ["rejected_messages"], "tools": ["tools"]}, "preference"),
    "LLaMA-Factory's marks": ("t.jsonl", lines(lambda n: {"messages": MESSAGES, "kto_tag": n % 2 == 0}),
                              {"completion": ["messages"], "label": ["kto_tag"]}, "unpaired_preference"),
    "a chat with a system prompt": ("t.jsonl", lines(lambda n: {"messages": MESSAGES, "system_prompt": "x", "functions": "[]"}),
                                    {"messages": ["messages"], "system": ["system_prompt"], "tools": ["functions"]}, "chat"),
    "Alpaca with a history": (
        "t.json", json.dumps([{"instruction": sentence(n), "input": "", "output": sentence(n + 99), "system": "x", "history": []}
                              for n in range(60)]).encode(),
        {"instruction": ["instruction"], "context": ["input"], "response": ["output"], "system": ["system"],
         "history": ["history"]}, "instruction"),
    "OpenOrca": ("t.jsonl", lines(lambda n: {"system_prompt": "x", "question": sentence(n), "response": sentence(n + 99)}),
                 {"instruction": ["question"], "response": ["response"], "system": ["system_prompt"]}, "instruction"),
    "marked answers": ("t.jsonl", lines(lambda n: {"prompt": sentence(n), "completion": sentence(n + 99), "label": n % 2}),
                       {"prompt": ["prompt"], "completion": ["completion"], "label": ["label"]}, "unpaired_preference"),
    "marked conversations": ("t.jsonl", lines(lambda n: {"messages": MESSAGES, "label": n % 2 == 0}),
                             {"completion": ["messages"], "label": ["label"]}, "unpaired_preference"),
    "premises that repeat": ("t.csv", table("premise", "hypothesis", "label", premise=lambda n: sentence(n // 3),
                             hypothesis=sentence, label=["no", "yes", "perhaps"]),
                             {"text": ["premise"], "text_pair": ["hypothesis"], "label": ["label"]}, "classification"),
    "a label beside a language": ("t.csv", table("text", "language", "genre", language=["en", "de"], genre=KINDS),
                                  {"text": ["text"], "label": ["genre"]}, "classification"),
    "many classes": ("t.csv", table("text", "intent", rows=400, intent=[f"intent {n}" for n in range(77)]),
                     {"text": ["text"], "label": ["intent"]}, "classification"),
    "one class with a long name": (
        "t.csv", table("text", "category", category=[*KINDS, "Maternal care for known or suspected damage " * 3]),
        {"text": ["text"], "label": ["category"]}, "classification"),
    "a byte order mark and Windows' line ends": (
        "t.csv", b"\xef\xbb\xbf" + table("text", "label", label=KINDS).replace(b"\n", b"\r\n"),
        {"text": ["text"], "label": ["label"]}, "classification"),
    "gzip": ("t.csv.gz", gzip.compress(table("text", "label", label=KINDS)),
             {"text": ["text"], "label": ["label"]}, "classification"),
    "bzip2 under a plain name": ("t.csv", bz2.compress(table("text", "label", label=KINDS)),
                                 {"text": ["text"], "label": ["label"]}, "classification"),
    "semicolons": ("t.csv", table("text", "label", mark=";", label=KINDS), {"text": ["text"], "label": ["label"]},
                   "classification"),
    "Chinese without spaces": ("t.jsonl", lines(lambda n: {"text": f"这是第{n}个句子，它讲的是天气和旅行。", "label": n % 2}),
                               {"text": ["text"], "label": ["label"]}, "classification"),
    "an index of pandas": ("t.csv", table("", "text", "label", label=KINDS, **{"": str}),
                           {"text": ["text"], "label": ["label"]}, "classification"),
    "another column of mixed types": (
        "t.jsonl", lines(lambda n: {"text": sentence(n), "label": KINDS[n % 3], "ref": n if n % 2 else f"x{n}"}),
        {"text": ["text"], "label": ["label"]}, "classification"),
    "messages": ("t.jsonl", lines(lambda n: {"messages": MESSAGES}), {"messages": ["messages"]}, "chat"),
    "ShareGPT": ("t.json", json.dumps([{"id": n, "conversations": TALK} for n in range(60)]).encode(),
                 {"messages": ["conversations"]}, "chat"),
    "messages as text in a csv": (
        "t.csv", b"id,chat\n" + b"".join(b'%d,"%s"\n' % (n, json.dumps(MESSAGES).replace('"', '""').encode())
                                        for n in range(60)), {"messages": ["chat"]}, "chat"),
    "Alpaca": ("t.json", json.dumps([{"instruction": sentence(n), "input": "", "output": sentence(n + 99)}
                                     for n in range(60)]).encode(),
               {"instruction": ["instruction"], "context": ["input"], "response": ["output"]}, "instruction"),
    "Dolly": ("t.jsonl", lines(lambda n: {"instruction": sentence(n), "context": "", "response": sentence(n + 99),
                                          "category": KINDS[n % 3]}),
              {"instruction": ["instruction"], "context": ["context"], "response": ["response"]}, "instruction"),
    "TRL": ("t.jsonl", lines(lambda n: {"prompt": sentence(n), "completion": sentence(n + 99)}),
            {"prompt": ["prompt"], "answer": ["completion"]}, "instruction"),
    "questions": ("t.csv", table("Question", "Answer", Question=sentence, Answer=lambda n: sentence(n + 99)),
                  {"instruction": ["Question"], "response": ["Answer"]}, "instruction"),
    "numbers of rows, more than are counted": ("t.csv", table("id", "story", rows=12_000, story=sentence), {"text": ["story"]},
                                               "text"),
    "lists of labels": ("t.jsonl", lines(lambda n: {"text": sentence(n), "labels": KINDS[: n % 3]}),
                        {"text": ["text"], "target": ["labels"]}, "multi_label"),
    "words and tags": ("t.conll", b"Ann\tB-name\nsits\tO\n\nBob\tB-name\n\n" * 30, {"words": ["words"], "target": ["tags"]},
                       "token_classification"),
    "tokens and tags in lists": (
        "t.jsonl", lines(lambda n: {"id": n, "pos": ["X", "Y"], "tokens": ["Ann", "sits"], "ner_tags": ["B-name", "O"]}),
        {"words": ["tokens"], "target": ["ner_tags"]}, "token_classification"),
    "lists as pandas writes them": (
        "t.csv", table("tokens", "ner_tags", mark="|", tokens=["['Ann', 'sits']", '["Ann\'s", "O"]'], ner_tags=["['B-x', 'O']"]),
        {"words": ["tokens"], "target": ["ner_tags"]}, "token_classification"),
    "spans as pandas writes them": (
        "t.csv", table("text", "entities", mark="|", entities=["[(0, 3, 'x')]", "[]", "[{'start': 0, 'end': 3, 'label': 'x'}]"]),
        {"text": ["text"], "target": ["entities"]}, "token_classification"),
    "spans": ("t.jsonl", lines(lambda n: {"text": sentence(n), "spans": [{"start": 0, "end": 3, "label": "x"}] * (n % 2)}),
              {"text": ["text"], "target": ["spans"]}, "token_classification"),
    "spans of doccano": ("t.jsonl", lines(lambda n: {"id": n, "text": sentence(n), "label": [[0, 3, "x"]]}),
                         {"text": ["text"], "target": ["label"]}, "token_classification"),
    "a text beside lists without an entry": ("t.jsonl", lines(lambda n: {"text": sentence(n), "notes": []}),
                                             {"text": ["text"]}, "text"),
    "plain text": ("t.txt", "\n".join(map(sentence, range(60))).encode(), {"text": ["text"]}, "text"),
    "one column of texts": ("t.csv", table("id", "story", story=sentence), {"text": ["story"]}, "text"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "wanted", "task"), SOUND.values(), ids=SOUND)
def test_columns_and_task_are_right(
    tmp_path: Path, name: str, content: bytes, wanted: dict[str, list[str]], task: str
) -> None:
    draft = taken(tmp_path, name, content)
    assert roles(draft) == wanted
    assert draft.settings["format"]["task"] == task
    assert draft.base in SCRATCH


def test_lists_of_one_label_each_are_said_to_be_classes_as_well(tmp_path: Path) -> None:
    def also(labels: Callable[[int], list[str]]) -> list[str]:
        return taken(tmp_path, "t.jsonl", lines(lambda n: {"text": sentence(n), "labels": labels(n)})).also

    (said,) = also(lambda n: [KINDS[n % 3]])
    assert said.startswith("also possible: format.task=classification") and "write labels without" in said
    assert also(lambda n: KINDS[: 1 + n % 2]) == also(lambda n: KINDS[: n % 2]) == []


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20
ROWS = table("text", "label", label=KINDS)
ASKED: dict[str, tuple[str, bytes, type[TrnflowError], str, str]] = {
    "fractions": ("t.csv", table("text", "score", score=lambda n: n / 7), Question, "score holds numbers from 0",
                  "format.task=regression format.target=score"),
    "a score of 261 values": ("t.csv", table("text", "score", rows=600, score=lambda n: n % 261), Question,
                              "amounts, or classes", "data.label=score (numbers from 0 to 260"),
    "a score beside a language": ("t.csv", table("text", "score", "lang", score=lambda n: n / 7, lang=["en", "de"]),
                                  Question, "which column", "data.label=lang"),
    "two that may be the label": ("t.csv", table("text", "channel", "kind", channel=["mail", "chat"], kind=KINDS), Question,
                                  "which column holds what is to be predicted? channel (2 values), kind (3 values)",
                                  "data.label=kind"),
    "three that may be the label": ("t.csv", table("text", "a", "b", "c", a=KINDS, b=["x", "y"], c=[1, 2]), Question,
                                    "which column holds what is to be predicted? a (3 values), b (2 values), c (2 values)",
                                    "data.label=a"),
    "several labels a row": ("t.tsv", table("text", "label", mark="\t", label=["1", "2", "1,2"]), Question,
                             "several values in a row (1,2)", "format.task=multi_label format.target=label"),
    "labels as pandas writes lists": ("t.csv", table("text", "label", mark="|", label=["['x', 'y']", "['x']", "[]"]), Question,
                                      "several values in a row (['x', 'y'])", "format.task=multi_label format.target=label"),
    "labels in brackets": ("t.csv", table("text", "label", mark="|", label=["[x, y]", "[x]", "[y]"]), Question,
                           "several values in a row ([x, y])", "format.task=multi_label format.target=label"),
    "numbers as numpy writes them": ("t.csv", table("text", "label", label=["[1 2]", "[3 4]", "[2 4]"]), Question,
                                     "several values in a row ([1 2])", "format.task=multi_label format.target=label"),
    "decimal commas": ("t.csv", table("text", "score", mark=";", score=["3,5", "4,0", "1,5"]), Question,
                       "score holds texts such as 3,5, which are not read as numbers", "data.label=score"),
    "lists of numbers of classes": ("t.csv", table("text", "kinds", mark=";", kinds=["1,2", "3,4", "10"]), Question,
                                    "kinds holds texts such as 1,2", "format.task=multi_label format.target=kinds"),
    "thousands": ("t.csv", table("text", "score", mark=";", score=["1,200", "900", "1,500"]), Question,
                  "to predict amounts, write them as 1234.5", "data.label=score"),
    "prices": ("t.csv", table("text", "price", price=lambda n: f"${n / 7:.2f}"), Question,
               "price holds texts such as $0.00, which are not read as numbers", "format.task=text"),
    "marks that are words": (
        "t.jsonl", lines(lambda n: {"prompt": sentence(n), "completion": sentence(n + 99), "label": ["good", "bad"][n % 2]}),
        Question, "label is good or bad: to learn which completions are better, write true", "format.task=instruction"),
    "a label of numbers and texts": (
        "t.jsonl", lines(lambda n: {"text": sentence(n), "label": n % 2 or "0"}), DataError,
        "t.jsonl row 2: label is 1, which is no string", "format.task=text"),
    "a label of numbers and texts beside other classes": (
        "t.jsonl", lines(lambda n: {"text": sentence(n), "label": n % 2 or "0", "kind_of": KINDS[n % 3]}), DataError,
        "t.jsonl row 2: label is 1, which is no string", "give the column one type"),
    "an answer of numbers and texts": (
        "t.jsonl", lines(lambda n: {"question": sentence(n), "answer": n if n % 2 else f"{n} apples"}), DataError,
        "t.jsonl row 2: answer is 1, which is no string", "give the column one type"),
    "a column of 0 and 1 for each label": (
        "t.csv", table("text", "toxic", "threat", "insult", toxic=[0, 1], threat=[0, 0, 1], insult=[1, 0, 0]), Question,
        "3 columns hold 0 or 1", """format.task=multi_label 'format.target=["toxic", "threat", "insult"]'"""),
    "names alone beside classes": (
        "t.csv", table("place", "kind_of", place=lambda n: f"place {n}", kind_of=KINDS), Question,
        "which column holds the texts? place (unique), kind_of (3 values)", "data.text=place"),
    "texts of a pair that stand in several rows": (
        "t.csv", table("head", "lead", "match", rows=900, head=lambda n: sentence(n // 2), lead=lambda n: sentence(n % 450, 30),
                       match=[1, 0]),
        Question, "which column holds the texts?", "data.text=head format.text_pair=lead (two texts that are judged together)"),
    "a word in each row": (
        "t.csv", table("Sentence #", "Word", "Tag", **{"Sentence #": ["1", "", ""]}, Word=KINDS, Tag=["O", "B-geo", "O"]),
        ConfigError, "no column holds texts to train on", "write a file NAME.conll"),
    "answers that are judged": (
        "t.jsonl", lines(lambda n: {"instruction": sentence(n), "output": sentence(n + 99), "label": ["good", "bad"][n % 2]}),
        Question, "label is good or bad: are answers of both kinds to be learnt", "format.task=instruction"),
    "Prodigy's answers": (
        "t.jsonl", lines(lambda n: {"text": sentence(n), "label": KINDS[n % 3], "answer": ["accept", "reject"][n % 2]}),
        ConfigError,
        "answer holds accept and reject", "keep the rows that are accepted"),
    "choices of each row": (
        "t.jsonl", lines(lambda n: {"question": sentence(n), "choices": {"text": KINDS, "label": ["A", "B", "C"]},
                                    "answerKey": "ABC"[n % 3]}), ConfigError,
        "choices holds answers to choose from, and answerKey names another one", "format.task=instruction"),
    "a query and lists of passages": (
        "t.jsonl", lines(lambda n: {"query": sentence(n), "pos": [sentence(n + 99)], "neg": [sentence(n + 7)]}), Question,
        "pos and neg hold lists of texts", "a row with a column for each text"),
    "a class and a list of tags": (
        "t.jsonl", lines(lambda n: {"text": sentence(n), "category": KINDS[n % 3], "tags": KINDS[: n % 3]}), Question,
        "category holds classes and tags lists", "format.task=multi_label format.target=tags"),
    "a label inside objects": (
        "t.jsonl", lines(lambda n: {"text": sentence(n), "sentiment": {"label": KINDS[n % 3], "score": 0.5}}), ConfigError,
        "sentiment holds objects with the fields label, score", "a column with the label alone"),
    "half a character in a text": (
        "t.jsonl", (lines(lambda n: {"text": sentence(n), "label": KINDS[n % 3]}) + b'\n{"text": "ab\\ud83d", "label": "bug"}'),
        DataError, r"t.jsonl row 61: text holds '\ud83d', half a character", "repair the row"),
    "a list among texts": (
        "t.jsonl", lines(lambda n: {"text": [sentence(n)] if n == 7 else sentence(n), "label": KINDS[n % 3]}), ConfigError,
        "text holds texts in some rows, and lists or objects in others", "give the column one type"),
    "lists of objects": ("t.jsonl", lines(lambda n: {"text": sentence(n), "labels": [{"name": "b"}]}), ConfigError,
                         "labels holds lists", ""),
    "pairs with a prompt in two columns": (
        "t.jsonl", lines(lambda n: {"instruction": sentence(n), "input": f"{n}", "chosen": "a", "rejected": "b"}), ConfigError,
        "chosen and rejected answer two columns, instruction and input", "join both"),
    "one class": ("t.csv", table("text", "label", label=["x"]), DataError, "is 'x' in every row", "data.label=COLUMN"),
    "two texts": ("t.csv", table("en", "de", en=sentence, de=lambda n: sentence(n + 99)), Question, "which is what",
                  "format.instruction=en format.response=de format.task=instruction"),
    "answers that are classes": ("t.csv", table("question", "answer", question=sentence, answer=["yes", "no"]), Question,
                                 "answer has 2 values", "data.label=answer"),
    "an unknown role": ("t.jsonl", lines(lambda n: {"messages": [{"role": "clown", "content": "x"}]}), DataError,
                        "has the role 'clown'", ""),
    "a workbook": ("t.xlsx", b"PK\x03\x04\0\0", ConfigError, "t.xlsx is no data file: it is binary",
                   "save the sheet as CSV in UTF-8; or give rows in one of these formats: .parquet"),
    "an image": ("photo.png", PNG, ConfigError, "photo.png is no data file: it is binary", ".parquet"),
    "TRL's prompt and completion of messages": (
        "t.jsonl", lines(lambda n: {"prompt": [{"role": "user", "content": sentence(n)}],
                                    "completion": [{"role": "assistant", "content": "yes"}]}), DataError,
        "each hold a part of a conversation", "messages = prompt + completion"),
    "an image called csv": ("t.csv", PNG, DataError, "t.csv is no csv: it is binary", ""),
    "an empty file": ("t.csv", b"", DataError, "t.csv is empty", ""),
    "an empty file without extension": ("t", b"", ConfigError, "t is empty", ""),
    "only a header": ("t.csv", b"text,label\n", DataError, "has no rows", ""),
    "a gzip cut short": ("t.csv.gz", gzip.compress(table("text", "label", rows=5000, label=KINDS))[:-2000], DataError,
                         "t.csv.gz can't be read", ""),
    "a parquet cut short": ("t.parquet", b"PAR1" + b"x" * 100, DataError, "t.parquet can't be read", ""),
    "latin-1": ("t.csv", ROWS + "café crème is what she ordered,bug\n".encode("latin-1"), DataError,
                "line 62 is not UTF-8", "UTF-8"),
    "UTF-16": ("t.csv", ROWS.decode().encode("utf-16"), DataError, "t.csv is UTF-16", "iconv"),
    "tabs called csv": ("t.csv", table("text", "label", mark="\t", label=KINDS), ConfigError, "separated by tabs",
                        "data.format=tsv"),
    "no header": ("t.csv", ROWS.partition(b"\n")[2], ConfigError, "the first line looks like a row", "text,label"),
    "a comma too many": ("t.csv", ROWS + b"one, two,three\n", DataError, "line 62 has 3 cells", "quoted"),
    "an open quote": ("t.csv", ROWS + b'"one,two\n', DataError, "line 62 is not csv", ""),
    "broken JSON": ("t.jsonl", lines(lambda n: {"text": "a"}) + b'\n{"text": ', DataError, "line 61 is not JSON", ""),
    "one JSON object": ("t.json", json.dumps({"data": [{"text": "a"}]}).encode(), ConfigError, "no column holds texts", ""),
    "a list of texts": ("t.json", json.dumps(["a", "b"]).encode(), DataError, "is not an object", ""),
    "unknown extension": ("t.dat", b"word\tno\nother\tno\n", ConfigError, "does not show its format", "data.format="),
    "tokens and tags called txt": ("t.txt", b"Paris B-place\nis O\n\nfar O\n", ConfigError, "a token and its tag in each line",
                                   "data.format=conll"),
    "numbers of tags": ("t.jsonl", lines(lambda n: {"tokens": ["Ann", "sits"], "ner_tags": [1, 0]}), ConfigError,
                        "ner_tags holds the numbers of tags, without names", "format.labels=[O, B-PER"),
    "tabs called csv and no header": (
        "t.csv", table("text", "label", mark="\t", label=KINDS).partition(b"\n")[2], ConfigError,
        "not by commas, and the first line looks like a row", r"(printf 'text\tlabel\n'; cut -f1-2 t.csv"),
    "no header, of short texts": ("t.csv", table("text", "label", text=lambda n: sentence(n, 3), label=KINDS).partition(b"\n")[2],
                                  ConfigError, "the first line looks like a row", "text,label"),
    "a title above the names": ("t.csv", b"Export of tickets,\n" + ROWS, ConfigError, "is it a title", "remove the lines"),
    "dates called label": ("t.csv", table("text", "label", label=lambda n: f"2024-01-{n % 28 + 1}"), Question, "holds dates",
                           "format.task=text"),
    "texts inside objects": ("t.jsonl", lines(lambda n: {"payload": {"text": sentence(n)}}), ConfigError,
                             "no column holds texts", "inside payload is not read"),
    "a table called txt": ("t.txt", b"ham\twhat a day it is\nspam\twin a prize\n" * 30, ConfigError, "is a table",
                           "data.format=tsv"),
    "fastText": ("t.txt", b"__label__1 what a day it is\n__label__2 win a prize\n" * 30, ConfigError, "is a table rather", ""),
    "texts and labels by semicolon": ("t.txt", b"i feel sad;sadness\ni feel fine;joy\n" * 30, ConfigError, "is a table", ""),
    "points beside a taster": ("t.csv", table("text", "points", "taster", points=lambda n: 80 + n % 21, taster=KINDS), Question,
                               "which column", "data.label=points"),
    "a list of words": ("t.txt", "\n".join(f"word{n}" for n in range(60)).encode(), Question, "1 words a row", "data.text=text"),
    "numbers alone": ("t.csv", table("a", "b", a=lambda n: n / 3, b=[1, 2]), ConfigError, "no column holds texts", ""),
    "two columns of one name": ("t.csv", b"text,text\n" + b"a b c d,e\n" * 30, DataError, "two columns named text", ""),
    "only blanks": ("t.csv", b"text,label\n" + b" , \n" * 30, ConfigError, "no column holds texts", ""),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "kind", "says", "fix"), ASKED.values(), ids=ASKED)
def test_what_is_not_clear_is_asked_or_refused(
    tmp_path: Path, name: str, content: bytes, kind: type[TrnflowError], says: str, fix: str
) -> None:
    with pytest.raises(kind) as caught:
        taken(tmp_path, name, content)
    assert says in caught.value.message and fix in caught.value.fix
    assert "\n" not in str(caught.value)


def test_a_named_column_that_can_not_be_read_is_refused_with_its_row(tmp_path: Path) -> None:
    content = lines(
        lambda n: {"title": sentence(n, 5), "body": "HALF" if n == 7 else sentence(n), "label": KINDS[n % 3]}
    )
    with pytest.raises(DataError, match=r"row 8: body holds '.ud83d'") as caught:
        taken(tmp_path, "t.jsonl", content.replace(b"HALF", rb"a\ud83d"), {"data": {"text": ["title", "body"]}})
    assert "name another column" in caught.value.fix


def test_answers_are_obeyed(tmp_path: Path) -> None:
    scores = table("text", "score", "lang", score=lambda n: n % 30, lang=["en", "de"])
    for label, column in (("score", "score"), ("score >= 15", "score"), ("lang", "lang")):
        draft = taken(tmp_path, "t.csv", scores, {"data": {"label": label}})
        assert roles(draft) == {"text": ["text"], "label": [column]} and draft.settings["data"]["label"] == label
    assert roles(taken(tmp_path, "t.csv", scores, {"format": {"task": "text"}})) == {"text": ["text"]}
    marked = lines(lambda n: {"messages": MESSAGES, "label": n % 2 == 0})
    assert roles(taken(tmp_path, "t.jsonl", marked, {"format": {"task": "chat"}})) == {"messages": ["messages"]}
    named = {"task": "instruction", "instruction": "en", "response": "de"}
    draft = taken(tmp_path, "p.csv", table("en", "de", en=sentence, de=lambda n: sentence(n + 99)), {"format": named})
    assert roles(draft) == {"instruction": ["en"], "response": ["de"]}
    named = {"task": "embedding", "text_pair": "de"}
    draft = taken(tmp_path, "p.csv", table("en", "de", en=sentence, de=lambda n: sentence(n + 99)),
                  {"data": {"text": "en"}, "format": named})  # fmt: skip
    assert roles(draft) == {"text": ["en"], "text_pair": ["de"]}
    with pytest.raises(Question, match="holds numbers from 0"):  # no class is a fraction
        taken(tmp_path, "f.csv", table("text", "score", score=lambda n: n / 7), {"data": {"label": "score"}})
    with pytest.raises(ConfigError, match="there is no column colour"):
        taken(tmp_path, "t.csv", scores, {"data": {"label": "colour"}})


def test_a_second_candidate_is_kept_as_a_comment(tmp_path: Path) -> None:
    content = table("title", "text", "team", "kind_of", team=KINDS, kind_of=["x", "y"])
    draft = taken(tmp_path, "t.csv", content)
    assert draft.others == {
        "data.text": [(["title", "text"], "both, joined; title: mean 6 words")],
        "data.label": [("kind_of", "2 values")],
    }


REAL: dict[str, dict[str, Any]] = {
    "amazon_books": {"text": ["review_text"], "label": ["label"]},
    "chat_tools": {"messages": ["conversations"], "tools": ["tools"]},
    "dolly15k": {"instruction": ["instruction"], "context": ["context"], "response": ["response"]},
    "emotion": {"text": ["text"], "label": ["label"]},
    "imdb": {"text": ["text"], "label": ["label"]},
    "preferences/kto_en_demo.json": {"completion": ["messages"], "label": ["label"]},
    "sentiment_amharic": {"text": ["tweet"], "label": ["label"]},
    "wnut17": {"words": ["words"], "target": ["tags"]},
}
REAL_ASKED = {
    "goemotions": "the first line looks like a row",
    "goemotions/labels.txt": "what is to be learnt",
    "preferences": "have no column in common",
    "stsbenchmark": "separated by tabs",
    "README.md": "does not show its format",
}


@pytest.mark.parametrize("name", REAL)
def test_real_data(shared: Path, tmp_path: Path, name: str) -> None:
    looked = look(SourceConfig(source=str(shared / "data" / name)), Resolver(tmp_path))
    assert roles(choose(looked, {})) == REAL[name]
    if name == "imdb":  # sorted by label: the first thousand rows have one
        assert looked.columns["label"].describe() == "2 values"


@pytest.mark.parametrize("name", REAL_ASKED)
def test_real_data_that_is_not_clear(shared: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(TrnflowError) as caught:
        choose(look(SourceConfig(source=str(shared / "data" / name)), Resolver(tmp_path)), {})
    assert REAL_ASKED[name] in caught.value.message


@pytest.mark.parametrize(
    ("name", "then"),
    [("goemotions/train.tsv", "label holds several values in a row"), ("stsbenchmark/sts-train.csv", "column5")],
)
def test_the_command_of_a_fix_makes_a_file_that_can_be_read(
    shared: Path, tmp_path: Path, name: str, then: str | None
) -> None:
    file = shutil.copy(shared / "data" / name, tmp_path)
    with pytest.raises(ConfigError) as caught:
        choose(look(SourceConfig(source=str(file)), Resolver(tmp_path / "home")), {})
    command = caught.value.fix.partition(": ")[2].replace("FILE", Path(name).name)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    looked = look(SourceConfig(source=str(tmp_path / command.split("> ")[-1])), Resolver(tmp_path / "home"))
    if then is None:
        assert roles(choose(looked, {})) == {"messages": ["messages"]}
    else:
        with pytest.raises(Question, match=then):
            choose(looked, {})


def test_a_huge_file_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Parquet the short columns are read to their end, so that rows sorted by label have both."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr("trnflow.flows.authoring.look.BYTES", 1 << 20)
    rows = [{"text": sentence(n), "label": n // 18_000} for n in range(20_000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_bytes(lines(rows.__getitem__, 20_000))
    (tmp_path / "t.csv").write_bytes(table("text", "label", rows=20_000, label=lambda n: n // 18_000))
    for name, classes in (("t.parquet", 2), ("t.jsonl", 1), ("t.csv", 1)):
        looked = look(SourceConfig(source=str(tmp_path / name)), Resolver(tmp_path / "home"))
        assert not looked.is_whole and looked.rows < 20_000
        assert len(looked.columns["label"].counts) == classes
    with pytest.raises(DataError, match="in every row that was read"):
        choose(looked, {})


def test_a_file_of_5_gb_takes_no_longer_than_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnflow.flows.authoring.look.BYTES", 1 << 20)
    with (tmp_path / "t.csv").open("wb") as file:
        file.write(table("text", "label", rows=50_000, label=KINDS, text=["what a day it was again"]))
        file.truncate(5 << 30)  # a hole behind the rows, which no reader may come to
    looked = look(SourceConfig(source=str(tmp_path / "t.csv")), Resolver(tmp_path / "home"))
    assert not looked.is_whole and len(looked.columns["label"].counts) == 3


def test_a_column_that_can_not_be_read_to_its_end_leaves_the_others_as_they_are() -> None:
    import pyarrow as pa

    def batches(names: list[str]) -> Any:
        for part in range(2):
            if part and "mixed" in names:
                raise DataError("t.jsonl row 3: mixed: 7 is no text")
            yield pa.record_batch([pa.array(["a", "b"])] * len(names), names=names)

    rows = RowReader("t.jsonl", pa.schema([("text", pa.string()), ("mixed", pa.string())]), batches)
    columns, unreadable = dict[str, Column](), dict[str, str]()
    assert _read(rows, columns, unreadable, 1 << 20) == (4, True)
    assert list(columns) == ["text"] and columns["text"].rows == 4
    assert columns["text"].counts == {"a": 2, "b": 2} and columns["text"].examples == ["a", "b", "a", "b"]
    assert unreadable == {"mixed": "t.jsonl row 3: mixed: 7 is no text"}


def test_rows_of_files_without_a_column_are_blank_in_it() -> None:
    import pyarrow as pa

    both = open_table(pa.table({"text": ["a", "b"], "note": ["x", None]}), "one.parquet")
    one = open_table(pa.table({"text": ["c", "d", "e"]}), "two.parquet")
    found = _read_split([both, one], 1 << 20)
    assert (found.rows, found.is_whole) == (5, True)
    assert {name: (column.rows, column.blank) for name, column in found.columns.items()} == {
        "text": (5, 0), "note": (5, 4),
    }  # fmt: skip


def test_data_is_looked_at_as_the_recipe_will_name_it() -> None:
    named = {"name": "de", "revision": "v2", "format": "csv", "splits": {"train": "first"}}
    found = _source("org/rows", {"data": {**named, "label": "team"}, "train": {"epochs": 1}})
    assert found.model_dump(include={"source", *named}) == {"source": "org/rows", **named}


def test_a_folder_of_mixed_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(ROWS)
    (tmp_path / "b.jsonl").write_bytes(lines(lambda n: {"text": sentence(n)}))
    (tmp_path / "photo.png").write_bytes(PNG)
    with pytest.raises(ConfigError, match=r"several formats: csv, jsonl"):
        look(SourceConfig(source=str(tmp_path)), Resolver(tmp_path / "home"))
    looked = look(SourceConfig(source=str(tmp_path), format="csv"), Resolver(tmp_path / "home"))
    assert looked.rows == 60 and looked.unread == ["b.jsonl"]


def test_labels_that_are_folders_are_not_lost_in_silence(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        (tmp_path / "set" / label).mkdir(parents=True)
        (tmp_path / "set" / label / "1.txt").write_text(sentence(1))
    with pytest.raises(ConfigError, match="text files in the folders neg, pos"):
        look(SourceConfig(source=str(tmp_path / "set")), Resolver(tmp_path / "home"))


def test_answers_name_what_is_to_be_predicted(tmp_path: Path) -> None:
    scores = table("text", "score", "age", score=lambda n: n / 7, age=lambda n: n % 30)
    draft = taken(tmp_path, "t.csv", scores, {"format": {"task": "regression", "target": ["score", "age"]}})
    assert draft.settings["format"] == {"task": "regression", "target": ["score", "age"]} and draft.base == "regression"
    assert taken(tmp_path, "t.csv", scores, {"format": {"task": "regression"}}).settings["format"]["target"] == "score"
    cells = table("text", "label", mark="\t", label=["1", "2", "1,2"])
    draft = taken(tmp_path, "t.tsv", cells, {"format": {"task": "multi_label"}})
    assert roles(draft) == {"text": ["text"], "target": ["label"]} and draft.base == "multi-label"
    with pytest.raises(ConfigError, match=r"format\.target: there is no column x"):
        taken(tmp_path, "t.csv", scores, {"format": {"task": "regression", "target": "x"}})


def test_a_table_of_tokens_and_tags_is_known_by_all_its_whole_lines() -> None:
    """The last line may be cut."""
    with pytest.raises(ConfigError, match=r"t\.txt has a token and its tag in each line .*data\.format=conll reads it"):
        refuse_tags("t.txt", b"Ann B-name\nsits O\nand")
    refuse_tags("t.txt", b"Ann B-name\nsits O\nno tag here\nand")


def test_two_million_columns_are_one_line_at_once(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",".join(f"c{n}" for n in range(2_000_000)) + "\n")
    started = time.monotonic()
    with pytest.raises(DataError, match=r"t\.csv has 2,000,000 columns or more, and may have 100,000") as caught:
        look(SourceConfig(source=str(tmp_path)), Resolver(tmp_path / "home"))
    assert time.monotonic() - started < 10
    assert len(str(caught.value)) < 200


def test_more_columns_than_it_looks_at_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",".join(f"c{n}" for n in range(2001)) + "\n")
    with pytest.raises(DataError, match=r"t\.csv has 2,001 columns, and `new` looks at 2,000 at most"):
        look(SourceConfig(source=str(tmp_path)), Resolver(tmp_path / "home"))


def test_a_broken_file_of_many_columns_is_not_read_once_for_each(tmp_path: Path) -> None:
    rows = [{f"c{n}": n for n in range(1001)}, {"c1000": "text"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="c1000 is"):
        look(SourceConfig(source=str(tmp_path)), Resolver(tmp_path / "home"))


def packed(file: Path, first: bytes, row: bytes, count: int, last: bytes = b"") -> None:
    with gzip.open(file, "wb", 1) as stream:
        stream.write(first)
        for _ in range(count // 10_000):
            stream.write(row * 10_000)
        stream.write(last)


@pytest.mark.parametrize(
    ("name", "first", "row", "last", "rows"),
    [
        ("t.json.gz", b"[", b'{"text": "good day", "label": "pos"},', b'{"text": 1.50, "label": "neg"}]', 200_000),
        ("t.jsonl.gz", b"", b'{"text": "good day", "label": "pos"}\n', b"", 200_000),
        ("t.txt.gz", b"hello there\n", b"\n", b"", 1),
        ("t.csv.gz", b"text,label\n", b"a b,pos\n", b"", 200_000),
        ("t.conll.gz", b"", b"a O\n\n", b"", 100_000),
    ],
)
def test_of_millions_of_short_rows_the_first_are_read(
    tmp_path: Path, name: str, first: bytes, row: bytes, last: bytes, rows: int
) -> None:
    packed(tmp_path / name, first, row, 8_000_000, last)
    started = time.process_time()
    looked = look(SourceConfig(source=str(tmp_path / name)), Resolver(tmp_path / "home"))
    assert rows <= looked.rows < rows + 5_000 and not looked.is_whole
    assert time.process_time() - started < 10


def test_a_short_array_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([{"text": sentence(n), "label": n % 2} for n in range(60)]))
    looked = look(SourceConfig(source=str(tmp_path / "t.json")), Resolver(tmp_path / "home"))
    assert looked.rows == 60 and looked.is_whole


@pytest.mark.parametrize(("name", "head"), [("t.csv.gz", b"text,label\na b,pos\n"), ("t.tsv.gz", b"text\tlabel\n")])
def test_blank_lines_without_an_end_are_one_line(tmp_path: Path, name: str, head: bytes) -> None:
    packed(tmp_path / name, head, b"\n", 60_000_000)
    started = time.process_time()
    with pytest.raises(DataError, match=rf"{name} line \d+ follows 1,000,000 blank lines"):
        look(SourceConfig(source=str(tmp_path / name)), Resolver(tmp_path / "home"))
    assert time.process_time() - started < 10


def test_a_batch_of_which_no_row_is_sampled_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last one of a file with long rows."""
    monkeypatch.setattr("trnflow.tasks.data.load.streams.BATCH_BYTES", 100)
    (tmp_path / "t.csv").write_bytes(table("text", "label", rows=3001, label=["a", "b"]))
    assert look(SourceConfig(source=str(tmp_path / "t.csv")), Resolver(tmp_path / "home")).rows == 3001


@pytest.mark.parametrize("task", ["classification", *EXAMPLES])
def test_the_metric_that_is_written_has_the_value_that_its_test_expects(task: str) -> None:
    example = EXAMPLES.get(task, SHARE)
    values = {name: np.array(eval(text, {"np": np})) for name, text in example.values.items()}
    assert eval(example.body, {"p": SimpleNamespace(**values)}) == example.result


@pytest.mark.parametrize("aside", ["fold", "split", "lang"])
def test_a_column_that_stands_aside_is_not_taken_for_the_label(tmp_path: Path, aside: str) -> None:
    rows = table("text", aside, "verdict", **{aside: ["1", "2", "3", "4"], "verdict": ["yes", "no", "maybe"]})
    assert taken(tmp_path, "t.csv", rows).settings["data"] == {"text": "text", "label": "verdict"}


@pytest.mark.parametrize(("names", "pair"), [(("query", "passage"), "passage"), (("asks", "answers"), None)])
def test_a_reranker_that_is_asked_for_knows_its_second_text_by_its_name(
    tmp_path: Path, names: tuple[str, str], pair: str | None
) -> None:
    columns = {names[0]: lambda n: sentence(n % 9, 4), names[1]: lambda n: sentence(n + 99)}
    rows = table(*columns, "relevance", relevance=["0", "1"], **columns)
    form = taken(tmp_path, "t.csv", rows, {"format": {"task": "reranker"}}).settings["format"]
    assert (form["task"], form.get("text_pair"), form["target"]) == ("reranker", pair, "relevance")


@pytest.mark.parametrize("large", [0, 1])
def test_of_several_files_all_must_be_read_to_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr("trnflow.flows.authoring.look.BYTES", 1 << 16)
    for number in (0, 1):
        (tmp_path / f"train-{number}.csv").write_bytes(table("text", rows=20_000 if number == large else 20))
    looked = look(SourceConfig(source=str(tmp_path)), Resolver(tmp_path / "home"))
    assert not looked.is_whole and 20 < looked.rows < 20_000


@pytest.mark.parametrize(("blank", "refused"), [(3, False), (2, True)])
def test_a_prompt_in_two_columns_is_refused_only_where_both_say_something(blank: int, refused: bool) -> None:
    names = ("instruction", "input", "chosen", "rejected")
    columns = {name: Column(name, rows=3, blank=blank if name == "input" else 0, examples=["a"]) for name in names}
    if refused:
        with pytest.raises(ConfigError, match="answer two columns, instruction and input"):
            preference(columns, {}, {})
        return
    draft = preference(columns, {}, {})
    assert draft is not None and [role for role, _ in draft.taken] == ["prompt", "chosen", "rejected"]


def test_a_column_without_a_name_is_taken_if_the_user_names_it(tmp_path: Path) -> None:
    content = table("label", "", label=["a", "b"], **{"": sentence})
    with pytest.raises(ConfigError, match="the first line does not name all columns"):
        taken(tmp_path, "a.csv", content, {"data": {"label": "label"}})
    draft = taken(tmp_path, "a.csv", content, {"data": {"text": "Unnamed: 1", "label": "label"}})
    assert "Unnamed: 1" in [column.name for _, column in draft.taken]


def test_the_named_column_of_words_is_taken_before_one_of_a_usual_name() -> None:
    def column(name: str, *examples: list[str]) -> Any:
        return SimpleNamespace(name=name, examples=[*examples])

    lists = {"words": [["a", "b"]], "lemmas": [["c", "d"]], "tags": [["O", "B-X"]]}
    columns = {name: column(name, *values) for name, values in lists.items()}
    for named, taken_one in ((None, "words"), ("lemmas", "lemmas")):
        found = words_and_tags(columns, named, None)
        assert found is not None and [each.name for each in found] == [taken_one, "tags"]


def test_a_column_s_name_with_a_point_stays_whole_in_an_answer() -> None:
    question = Question("which?", {"data.label=mine vs. theirs format.task=classification": "classes"})
    assert question.fix == "answer with 'data.label=mine vs. theirs' format.task=classification (classes)"


def test_of_prodigy_s_answers_those_that_were_all_accepted_are_learnt(tmp_path: Path) -> None:
    rows = lines(lambda n: {"text": sentence(n), "label": KINDS[n % 3], "answer": "accept"})
    assert roles(taken(tmp_path, "t.jsonl", rows)) == {"text": ["text"], "label": ["label"]}
