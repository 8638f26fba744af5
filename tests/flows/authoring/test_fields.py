"""Every field of a file in one of three classes, in twelve public shapes: it changes what is learnt, or rows that have it are
refused by name, or `new` names it as unused and nothing depends on it. A field is tried by changing it in all rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flows.authoring.test_choose import sentence
from tests.helpers.chats import chat_model, chat_template
from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import Bench
from trnflow.flows.recipes.recipe import load
from trnflow.tasks.errors import DataError
from trnflow.tasks.format_prompts import format_prompts
from trnflow.tasks.load_data import load_data

pytestmark = pytest.mark.slow

Row = dict[str, Any]
Rows = list[Row]

COUNT = 24


@dataclass
class Shape:
    """A public shape of rows.

    Attributes:
        row: Makes a row of its number.
        other: Fields that no format defines to change what is learnt; all others are used.
        refused: {field: a value with which rows are refused}.
        changed: {field: what it is changed to}, where a changed text or number is no good value.
        write: Writes the rows to a folder; returns what `new` is given.
    """

    row: Callable[[int], Row]
    other: set[str]
    refused: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    write: Callable[[Path, Rows], str] = lambda folder, rows: jsonl(folder, rows)
    settings: tuple[str, ...] = ()
    template: str = "qwen3_training"


def jsonl(folder: Path, rows: Rows) -> str:
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "t.jsonl"


def array(folder: Path, rows: Rows) -> str:
    (folder / "t.json").write_text(json.dumps(rows))
    return "t.json"


def table(mark: str, name: str) -> Callable[[Path, Rows], str]:
    def write(folder: Path, rows: Rows) -> str:
        lines = [mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n")
        return name

    return write


def conll(folder: Path, rows: Rows) -> str:
    words = ("\n".join("\t".join(cells) for cells in zip(*row.values(), strict=True)) for row in rows)
    (folder / "t.conll").write_text("\n\n".join(words) + "\n")
    return "t.conll"


def datasets_folder(folder: Path, rows: Rows) -> str:
    """As `datasets` writes it to the hub: Parquet whose metadata has the names of the classes."""
    (folder / "data").mkdir(exist_ok=True)
    names = {"label": {"names": ["bug", "wish", "question"], "_type": "ClassLabel"}}
    features = {name: names.get(name, {"dtype": "string", "_type": "Value"}) for name in rows[0]}
    huggingface = json.dumps({"info": {"features": features}})
    made = pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": huggingface})
    pq.write_table(made, folder / "data/train-00000-of-00001.parquet")
    return "data"


def call(n: int) -> Row:
    return {"id": f"call{n:05}", "type": "function", "function": {"name": "add", "arguments": f'{{"a": {n}}}'}}


def tools(n: int) -> list[Row]:
    return [
        {"type": "function", "function": {"name": "add", "description": f"adds {n}", "parameters": {"type": "object"}}}
    ]


SHAPES = {
    "OpenAI's chats": Shape(
        lambda n: {
            "messages": [
                {"role": "system", "content": f"Be brief {n}."},
                {"role": "user", "content": f"first {n}?", "name": "ann"},
                {"role": "assistant", "content": f"wrong {n}", "weight": 0},
                {"role": "user", "content": f"second {n}?"},
                {"role": "assistant", "tool_calls": [call(n)], "weight": 1},
                {"role": "tool", "content": f"sum {n}", "tool_call_id": f"call{n:05}"},
                {"role": "assistant", "content": f"right {n}"},
            ],
            "tools": tools(n),
            "parallel_tool_calls": False,
        },
        {"messages.name", "messages.tool_call_id", "messages.tool_calls.id", "messages.tool_calls.type", "parallel_tool_calls"},
        {"messages.weight": 0.5, "weight": 0.2, "messages.mask": True, "images": ["a.jpg"]},
    ),
    "ShareGPT": Shape(
        lambda n: {
            "id": f"talk{n}",
            "conversations": [
                {"from": "human", "value": f"asked {n}?", "markdown": "x"},
                {"from": "function_call", "value": json.dumps({"name": "add", "arguments": {"a": n}})},
                {"from": "observation", "value": f"sum {n}"},
                {"from": "gpt", "value": f"answer {n}"},
            ],
            "system": f"Be kind {n}.",
            "tools": json.dumps([{"name": "add", "description": f"adds {n}", "parameters": {}}]),
        },
        {"id", "conversations.markdown"},
        changed={"tools": lambda text: text.replace("adds", "takes"), "conversations.value": lambda text: text.replace("1", "2")},
        write=array,
    ),
    "Alpaca with history": Shape(
        lambda n: {
            "instruction": sentence(n),
            "input": f"given {n}",
            "output": sentence(n + 99),
            "system": f"Be precise {n}.",
            "history": [[f"before {n}?", f"earlier {n}"]],
            "source": f"web{n}",
        },
        {"source"},
        {"tools": '[{"name": "add"}]', "loss_weight": 0.5},
        {"history": lambda rounds: [*rounds, ["again?", "yes"]]},
        array,
    ),
    "TRL's prompts and completions": Shape(
        lambda n: {"prompt": f"{sentence(n)} ->", "completion": f" {sentence(n + 99)}", "source": f"web{n}"},
        {"source"},
        {"system": "Be brief."},
    ),
    "TRL's conversations": Shape(
        lambda n: {
            "messages": [{"role": "user", "content": f"asked {n}?"}, {"role": "assistant", "content": f"answer {n}"}],
            "chat_template_kwargs": {"enable_thinking": False},
            "source": f"web{n}",
        },
        {"source"},
        changed={"chat_template_kwargs": lambda _: {"enable_thinking": True}},
        template="smollm3",
    ),
    "KTO": Shape(
        lambda n: {"prompt": sentence(n), "completion": sentence(n + 99), "label": n % 2 == 0, "annotator": f"a{n}"},
        {"annotator"},
        {"system": "Be brief."},
    ),
    "KTO of LLaMA-Factory": Shape(
        lambda n: {
            "messages": [{"role": "user", "content": f"asked {n}?"}, {"role": "assistant", "content": f"answer {n}"}],
            "kto_tag": n % 2 == 0,
            "id": f"r{n}",
        },
        {"id"},
    ),
    "axolotl's": Shape(
        lambda n: {
            "conversations": [
                {"from": "human", "value": f"asked {n}?", "train": False},
                {"from": "gpt", "value": f"wrong {n}", "train": False},
                {"from": "human", "value": f"again {n}?"},
                {
                    "from": "gpt",
                    "value": f"I think it is {n}",
                    "train_detail": [
                        {"begin_offset": 0, "end_offset": 7, "train": False},
                        {"begin_offset": 8, "end_offset": 13, "train": True},
                    ],
                },
            ],
            "system": f"Be kind {n}.",
            "dataset_id": f"d{n}",
        },
        {"dataset_id"},
        {"conversations.weight": 0.5},
        {"conversations.train_detail": lambda details: [{**each, "train": not each["train"]} for each in details]},
    ),
    "LLaMA-Factory's v1 demo": Shape(
        lambda n: {
            "messages": [
                {"role": "user", "content": [{"type": "text", "value": f"asked {n}?"}], "loss_weight": 0.0},
                {
                    "role": "assistant",
                    "content": [{"type": "reasoning", "value": f"thought {n}"}, {"type": "text", "value": f"answer {n}"}],
                    "loss_weight": 0.0,
                },
                {"role": "user", "content": [{"type": "text", "value": f"more {n}?"}], "loss_weight": 0.0},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_call", "value": json.dumps({"name": "add", "arguments": {"a": n}})}],
                    "loss_weight": 1.0,
                },
            ],
            "tools": json.dumps(tools(n)),
            "extra_info": f"i{n}",
        },
        {"extra_info"},
        {"messages.loss_weight": 0.3},
        {
            "tools": lambda text: text.replace("adds", "takes"),
            "messages.content": lambda parts: [{**part, "value": part["value"].replace("1", "2")} for part in parts],
        },
    ),
    "LLaMA-Factory's v1 pairs": Shape(
        lambda n: {
            f"{name}_messages": [
                {"role": "user", "content": [{"type": "text", "value": f"asked {n}?"}], "loss_weight": 0.0},
                {"role": "assistant", "content": [{"type": "text", "value": f"{name} {n}"}], "loss_weight": 1.0},
            ]
            for name in ("chosen", "rejected")
        }
        | {"extra_info": f"i{n}"},
        {"extra_info"},
        {"chosen_messages.loss_weight": 0.5},
        {
            f"{name}_messages.content": lambda parts: [{**part, "value": part["value"] + "!"} for part in parts]
            for name in ("chosen", "rejected")
        },
    ),
    "CoNLL": Shape(
        lambda n: {"words": [f"w{n}", "sits", f"v{n}"], "column2": ["NNP", "VB", "NN"], "tags": ["B-name", "O", "O"]},
        {"column2"},
        changed={"tags": lambda tags: [*tags[:-1], "B-name"], "words": lambda words: [f"{word}x" for word in words]},
        write=conll,
    ),
    "a folder of datasets": Shape(
        lambda n: {"text": sentence(n), "label": n % 3, "idx": f"i{n}"},
        {"idx"},
        changed={"label": lambda label: (label + 1) % 3},
        write=datasets_folder,
    ),
    "a table of Kaggle": Shape(
        lambda n: {
                "Id": n, "Review": sentence(n), "Sentiment": ["bad", "good"][n % 2], "Weight": n / 7,
                "Date": f"2024-01-{n + 1:02}",
            },
        {"Id", "Weight", "Date"},
        changed={"Sentiment": lambda label: {"bad": "good", "good": "bad"}[label]},
        write=table(",", "t.csv"),
        settings=("data.label=Sentiment",),
    ),
    "sentence-transformers' pairs": Shape(
        lambda n: {"anchor": sentence(n), "positive": sentence(n + 99), "negative": sentence(n + 7), "lang": ["en", "de"][n % 2]},
        {"lang"},
    ),
    "STS": Shape(
        lambda n: {
            "genre": ["news", "forum"][n % 2], "year": 2012 + n % 3, "old_index": n, "sentence1": sentence(n),
            "sentence2": sentence(n + 99), "score": n % 51 / 10,
        },
        {"genre", "year", "old_index"},
        changed={"score": lambda score: 5 - score},
        write=table("\t", "t.tsv"),
        settings=("format.task=regression", "format.target=score"),
    ),
}  # fmt: skip


class Tried:
    """A shape's rows through `new`, load_data and format_prompts."""

    def __init__(self, shape: Shape, bench: Bench, folder: Path) -> None:
        self.shape, self.bench, self.folder = shape, bench, folder
        self.rows = [shape.row(n) for n in range(COUNT)]
        self.shell = InProcessShell(folder)
        self.model, _ = chat_model(folder / "base", chat_template(shape.template))
        given = shape.write(folder, self.rows)
        self.document = self.shell.json("new", given, "name=mine", f"model.source={folder / 'base'}", *shape.settings)
        self.recipe = load(str(folder / "mine.yaml"))

    def made(self, rows: Rows) -> tuple[Any, Row, Row]:
        """The examples of rows, and the metadata of both stages."""
        self.shape.write(self.folder, rows)
        config = self.recipe.loading.model_copy(
            update={
                "split": {},
                "stratify": False,
                "source": str(self.folder / self.document["settings"]["data"]["source"]),
            }
        )
        loaded = self.bench.made(load_data, config, source=self.bench.source(config))
        inputs = {"rows": loaded, "model": self.bench.model(self.model)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trnflow.tasks.format_prompts.call_limited", call_here)
            texts = self.bench.made(format_prompts, self.recipe.format, **inputs)
        return pq.read_table(texts.path / "train.parquet").to_pylist(), loaded.meta, texts.meta


def call_here(function: str, arguments: Row) -> Row:
    from tests.helpers.data_stages import call_here as called

    return called(function, arguments)


def names(rows: Rows) -> Iterator[str]:
    """Columns, and of messages their fields; parts and details are values."""
    for name, value in rows[0].items():
        yield from inside(value, name) if talks(value) else [name]


def talks(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and bool({"role", "from"} & value[0].keys())
    )


def inside(messages: Any, column: str) -> Iterator[str]:
    for message in messages:
        for name, value in message.items():
            yield from (f"{column}.{name}.{own}" for own in value[0]) if name == "tool_calls" else [f"{column}.{name}"]


def changed(rows: Rows, name: str, change: Callable[[Any], Any]) -> Rows:
    """Rows with a field changed wherever it is."""
    rows = copy.deepcopy(rows)
    column, *path = name.split(".")
    for row in rows:
        if not path:
            row[column] = change(row.get(column))
            continue
        objects = [message for message in row[column] if path[0] in message] or row[column][-1:]
        objects = [call for message in objects for call in message["tool_calls"]] if len(path) > 1 else objects
        for each in objects:
            each[path[-1]] = change(each.get(path[-1]))
    return rows


def another(value: Any) -> Any:
    """Another value of the same kind; None where there is none."""
    if isinstance(value, bool) or value in (0, 1):
        return type(value)(1 - value)
    if isinstance(value, str):
        return f"{value} else"
    if isinstance(value, dict):
        return {**value, "more": "else"} if "name" not in value else {**value, "name": "other", "arguments": '{"b": 0}'}
    if isinstance(value, list):
        return [another(entry) for entry in value]
    return None if value is None else value + 1


ROLES = ("role", "from")


@pytest.mark.parametrize("name", SHAPES)
def test_every_field_is_used_or_refused_or_named(bench: Bench, tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    tried = Tried(shape, bench, tmp_path)
    examples, loaded, texts = tried.made(tried.rows)
    assert examples
    ignored = {*tried.document["settings"]["data"]["ignore"]}
    known = {*loaded.get("left_out", ()), *texts.get("unread", ())}
    used = [each for each in dict.fromkeys(names(tried.rows)) if each not in shape.other]
    for each in shape.other:
        rows = changed(tried.rows, each, shape.changed.get(each, another))
        assert rows != tried.rows and tried.made(rows)[0] == examples, f"{each} changes what is learnt"
        if name != "CoNLL":  # whose columns have no names
            # fields that most templates read are named when they were not
            assert each in ignored | known and (each in known or each in ignored), (
                f"{each} is unused, and nothing says so"
            )
    for each in used:
        if each.rpartition(".")[2] in ROLES:
            continue
        rows = changed(tried.rows, each, shape.changed.get(each, another))
        assert rows != tried.rows and refused_or_other(tried, rows, examples), f"{each} changes nothing"
        assert each not in ignored | known, f"{each} is used, and it is said that it is not"
    for each, value in shape.refused.items():
        with pytest.raises(DataError) as caught:
            tried.made(changed(tried.rows, each, lambda _, value=value: value))
        assert "split train row 1" in caught.value.message and each.rpartition(".")[2] in caught.value.message


def refused_or_other(tried: Tried, rows: Rows, examples: Any) -> bool:
    try:
        return tried.made(rows)[0] != examples
    except DataError:
        return True
