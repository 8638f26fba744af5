"""Turn rows into the text that the model reads: a text and a label, or the parts of a text, some of which are trained
on.

Texts come from columns, from sandboxed Jinja templates over all kept columns, or for conversations from the tokenizer's
chat template. Rows without an answer or a text are dropped and counted; so are rows that can't be rendered, if `bad_rows`
is "drop". Works in parts of 32,768 rows; parts with templates run in processes of their own, so that a template that never
ends stops the run. Fails with ConfigError for a column that the rows lack or a wrong template, DataError for a row that
can't be formatted.
"""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator, model_validator

from tasks.artifact import Artifact, Input, Meta, Source
from tasks.config import StageConfig, keyed_params
from tasks.data.format.chat import (
    REWRITTEN,
    Columns,
    Made,
    conversation_of,
    parsed,
    sections,
    special_pattern,
    templated,
)
from tasks.data.format.instruction_styles import STYLES
from tasks.data.format.row_counts import BAD, Tally, report
from tasks.data.format.source_rows import write_source_rows
from tasks.data.format.templates import RESERVED, ChatTemplate, Limit, RowTemplate, no_limit
from tasks.data.format.time_limit import call_limited
from tasks.data.special_tokens import chat_templates, special_texts, special_tokens
from tasks.data.tables import read_rows, write_rows
from tasks.errors import ConfigError, DataError
from tasks.sources.model_source import tokenizer_folder
from tasks.stage import Keyed, Part, Parts, Workdir, stage

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.data.format.source_rows import Ints

BATCH = 4096
PART = 8 * BATCH
"""Rows in one part of the work."""

ARGUMENTS = "chat_template_kwargs"
"""The column with a row's own variables for the chat template."""

SOURCE_ROW = "source_row"
"""The column of a part's examples that numbers the row of the split from which each was made."""

Row = dict[str, Any]
Text = Callable[[Row, str], str]
RowMaker = Callable[[Row, str], Row | None]
Maker = Callable[[Row, str], Made]
"""A function that makes examples from a row. Its second argument names the row in errors."""


class FormatConfig(StageConfig):
    """Settings of `format_prompts`: what text the model reads for each row, and which part of it is trained on."""

    task: Literal["classification", "instruction", "chat", "text"] = "classification"
    """What a row becomes: `classification` (text and label), `instruction` (a question and its answer; only the answer
    is trained on), `chat` (a conversation; the assistant's turns are trained on) or `text` (all of it is trained
    on)."""
    separator: str = "\n"
    """The text between two columns, where classification joins several columns of `data.text`."""
    instruction: str = "instruction"
    """The column of an instruction."""
    context: str | None = "context"
    """The column of an instruction's context. Rows may lack it; null ignores it."""
    response: str = "response"
    """The column of the answer to an instruction."""
    messages: str = "messages"
    """The column of a conversation: a list of objects with `role` and `content`, or ShareGPT's `from` and `value`."""
    text: str = "text"
    """The column that task `text` trains on."""
    style: Literal["dolly", "alpaca"] = "dolly"
    """The headings around an instruction, its context and its answer: as in the Dolly or in the Alpaca data set."""
    prompt_template: str | None = None
    """A Jinja template of the prompt over the row's columns, instead of `style` or the joined text."""
    response_template: str | None = None
    """A Jinja template of the answer over the row's columns, instead of the column `response`."""
    chat_template: str = "tokenizer"
    """The template of conversations: `tokenizer` (the tokenizer's own), `sections` (plain headings), or Jinja as
    tokenizers carry it."""
    tools: str | None = "tools"
    """The column of the tools that a chat template receives: a list of objects, or JSON text. Rows may lack it."""
    documents: str | None = "documents"
    """The column of the documents that a chat template receives: a list of objects, or JSON text. Rows may lack it."""
    template_arguments: dict[str, Any] = {}
    """Further variables of the chat template, such as `{enable_thinking: false}`. Values in a row's column
    `chat_template_kwargs` replace them."""
    date: str = "2024-07-26"
    """The date that a chat template receives as today's, as YYYY-MM-DD. It is fixed so that prompts do not depend on
    the day of the run."""
    turns: Literal["all", "last"] = "all"
    """Which of the assistant's turns are trained on. Where the chat template rewrites earlier turns, `all` makes one
    example of each turn."""
    bad_rows: Literal["error", "drop"] = "error"
    """What happens to rows that can't be rendered: `error` stops and names the first, `drop` drops and counts them."""

    @field_validator("date", mode="before")
    @classmethod
    def _is_a_day(cls, value: object) -> str:
        """Accept a date as well as text, because YAML reads 2024-07-26 as a date."""
        return datetime.date.fromisoformat(str(value)).isoformat()

    @field_validator("template_arguments")
    @classmethod
    def _are_its_own(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted({*value} & {*RESERVED}):
            raise ValueError(f"{', '.join(taken)} can't be set here: the rows give them")
        try:
            return dict(json.loads(json.dumps(value)))
        except TypeError as error:
            raise ValueError(f"{error}: write it as text, in quotes") from error

    @model_validator(mode="after")
    def _templates_have_a_task(self) -> FormatConfig:
        if self.prompt_template and self.task not in ("classification", "instruction"):
            raise ValueError(f"`prompt_template` is for classification and instruction, not {self.task}")
        if self.response_template and self.task != "instruction":
            raise ValueError(f"`response_template` is for instruction, not {self.task}")
        if self.template_arguments and not is_framed(self):
            raise ValueError("`template_arguments` are for chat through a chat template")
        return self


def _inputs(config: FormatConfig, inputs: Keyed) -> Meta:
    """Return the inputs that are part of the stage's key: the rows and, for conversations, the model's tokenizer, which
    has the chat template."""
    rows, model = inputs["rows"], inputs["model"]
    assert isinstance(rows, Artifact) and isinstance(model, Source)
    return {"rows": rows.digest, **({"tokenizer": model.identity["tokenizer"]} if config.task == "chat" else {})}


def split_rows(config: FormatConfig, rows: Input, model: Source, out: Workdir) -> list[Part]:
    """Cut each split into parts of 32,768 rows. Raises ConfigError for a wrong setting, before any row is read."""
    chat = chat_document(config, tokenizer_folder(model)) if is_framed(config) else None
    _maker(config, rows.meta, chat, no_limit)
    if config.task == "chat":
        _tell_unread(config, rows.meta, chat, out)
    return [
        _part(config, chat, rows, split, first, min(PART, count - first))
        for split, count in rows.meta["splits"].items()
        for first in range(0, count, PART)
    ]


def _part(config: FormatConfig, chat: Meta | None, rows: Input, split: str, first: int, count: int) -> Part:
    arguments = {"split": split, "first": first, "count": count, "chat": chat}
    identity = {"params": {**keyed_params(config), **arguments}, "inputs": {"rows": rows.digest}}
    return Part(identity, arguments)


def format_rows(config: FormatConfig, rows: Input, part: Meta, out: Workdir) -> Meta:
    """Format `count` rows of a split from row `first` on: a part of the stage's work.

    part: split, first, count, and chat (from `chat_document`, or null). Writes `texts.arrow`, in which `source_row` is the
    number of each example's row in the split; returns a Tally as JSON."""
    arguments = {
        "config": config.model_dump(mode="json"),
        "file": str(rows.path / f"{part['split']}.parquet"),
        "meta": rows.meta,
        "part": part,
        "to": str(out.path / "texts.arrow"),
    }
    if part["chat"] or config.prompt_template or config.response_template:
        return call_limited("tasks.format_prompts:render_rows", arguments)
    return render_rows(arguments, no_limit)


@stage(kind="texts", inputs=_inputs, split=split_rows, part=format_rows)
def format_prompts(config: FormatConfig, rows: Input, model: Source, parts: Parts, out: Workdir) -> Meta:
    """Write `<split>.parquet` with the columns `text: string, label: int64` (classification) or `parts:
    list<struct<text, train>>` (other tasks). Where the examples of a split are not its rows one for one, also
    `<split>.source_row.npy` int32 [examples], the row of each example, counted from 0.

    Returns metadata: task (`classification` or `causal_lm`), labels, splits {name: examples}, dropped {reason: rows},
    framed (whether a chat template wrote the special tokens, bos and eos included), templates (the recipe's; special tokens
    in them count), rows (how rows are formatted: settings, text, columns, nested), metrics where rows were dropped or
    became several examples."""
    classify = config.task == "classification"
    made = {split: _gathered(split, count, config, parts, out) for split, count in rows.meta["splits"].items()}
    return {
        "task": "classification" if classify else "causal_lm",
        "labels": rows.meta["labels"] if classify else None,
        "splits": {split: tally.made for split, tally in made.items()},
        "framed": is_framed(config),
        "templates": [text for text in (config.prompt_template, config.response_template) if text],
        "rows": {
            "settings": keyed_params(config),
            "text": rows.meta["text"],
            "columns": rows.meta["columns"],
            "nested": rows.meta.get("nested", []),
        },
        **report(made, out),
    }


def _gathered(split: str, count: int, config: FormatConfig, parts: Parts, out: Workdir) -> Tally:
    """Write one split and return the counts of its rows. DataError when no row is left."""
    tally = Tally()
    sources: list[Ints] = []
    tables = _tables(split, count, parts, tally, sources, out)
    write_rows(tables, _schema(config), out.path / f"{split}.parquet", lambda done: None)
    write_source_rows(out.path, split, sources, count)
    if tally.made == 0:
        bad = f" ({tally.rows(BAD)} can't be rendered; the first: {tally.noted[BAD][1]})" if tally.rows(BAD) else ""
        raise DataError(
            f"the split {split} is empty: none of its {count} rows has an answer{bad}",
            "repair the rows or the template" if bad else "check format's columns",
        )
    return tally


def _schema(config: FormatConfig) -> pa.Schema:
    import pyarrow as pa

    if config.task == "classification":
        return pa.schema([("text", pa.string()), ("label", pa.int64())])
    plain = [("plain", pa.bool_())] if is_framed(config) else []
    return pa.schema([("parts", pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_()), *plain])))])


def is_framed(config: FormatConfig) -> bool:
    """Whether a chat template writes the special tokens, bos and eos included."""
    return config.task == "chat" and config.chat_template != "sections"


def _tables(
    split: str, count: int, parts: Parts, tally: Tally, sources: list[Ints], out: Workdir
) -> Iterator[pa.Table]:
    """Yield the examples of a split, and append the rows that they come from to `sources`."""
    import numpy as np
    import pyarrow as pa

    for part in parts.of(split=split):
        tally.add(part.meta)
        with pa.OSFile(str(part.folder / "texts.arrow")) as file:  # not memory-mapped: the folder is removed early
            table = pa.ipc.open_file(file).read_all()
        sources.append(np.array(table.column(SOURCE_ROW)))  # a copy: a view would keep the texts in memory
        yield table.drop_columns([SOURCE_ROW])
        out.progress(part.arguments["first"] + part.arguments["count"], count, f"{split} rows")


def render_rows(arguments: Meta, limit: Limit) -> Meta:
    """Do the work of `format_rows` in this process. arguments: as `format_rows` makes them; limit: the context of each
    rendering."""
    import pyarrow as pa

    config, part = FormatConfig.model_validate(arguments["config"]), arguments["part"]
    texts, make = _schema(config), _maker(config, arguments["meta"], part["chat"], limit)
    schema = texts.append(pa.field(SOURCE_ROW, pa.int32()))
    table, tally = read_rows(Path(arguments["file"]), part["first"], part["count"]), Tally()
    with pa.OSFile(arguments["to"], "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in table.to_batches(BATCH):
            made: list[Row] = []
            numbers: list[int] = []
            for row in batch.to_pylist():
                number = part["first"] + tally.read
                examples = _examples(config, make, row, f"split {part['split']} row {number + 1}", tally)
                made += examples
                numbers += [number] * len(examples)
            columns = [*pa.Table.from_pylist(made, texts).columns, pa.array(numbers, pa.int32())]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return tally.meta()


def _examples(config: FormatConfig, make: Maker, row: Row, where: str, tally: Tally) -> list[Row]:
    """Return the examples made from a row, and count them in `tally`. Raises DataError when the row can't be rendered,
    unless `bad_rows` is "drop"."""
    tally.read += 1
    try:
        made = make(row, where)
    except DataError as error:
        if config.bad_rows == "error":
            raise DataError(error.message, f"{error.fix}; format.bad_rows=drop leaves such rows out") from error
        tally.note(BAD, error.message)
        return []
    for note in made.notes:
        tally.note(note, where)
    tally.made += len(made.examples)
    tally.empty += not made.examples
    tally.apart += len(made.examples) if REWRITTEN in made.notes else 0
    return made.examples


def _maker(config: FormatConfig, meta: Meta, chat: Meta | None, limit: Limit) -> Maker:
    if config.task == "chat":
        return _chat(config, meta, chat, limit)
    make = MAKERS[config.task](config, meta, limit)
    return lambda row, where: Made([made] if (made := make(row, where)) else [])


def _classification(config: FormatConfig, meta: Meta, limit: Limit = no_limit) -> RowMaker:
    if meta["labels"] is None:
        raise ConfigError("format.task: classification needs labels, and the data has none", "set data.label")
    present = [name for name, count in meta.get("label_counts", {}).get("train", {}).items() if count]
    if len(present) == 1:
        raise DataError(
            f"format.task: classification needs two classes, and all rows of train are labelled {present[0]}",
            "give rows of other classes, or choose another column or rule with data.label",
        )
    columns = meta["text"]
    text = row_template(config, "prompt_template", meta, limit)[0] if config.prompt_template else None
    if not columns and text is None:
        raise ConfigError("format.task: classification needs to know the text", "set data.text")

    def make(row: Row, where: str) -> Row:
        return {
            "text": text(row, where) if text else config.separator.join(row[name] for name in columns),
            "label": row["label"],
        }

    return make


def _instruction(config: FormatConfig, meta: Meta, limit: Limit = no_limit) -> RowMaker:
    if config.prompt_template:
        prompt, _ = row_template(config, "prompt_template", meta, limit)
    else:
        prompt = instruction_prompt(config, meta)
    if config.response_template:
        answer, _ = row_template(config, "response_template", meta, limit)
    else:
        _present("format.response", config.response, meta)
        answer = _column(config.response)

    def make(row: Row, where: str) -> Row | None:
        response = answer(row, where)
        if not response.strip():
            return None
        return {"parts": [{"text": prompt(row, where), "train": False}, {"text": response, "train": True}]}

    return make


def row_template(config: FormatConfig, setting: str, meta: Meta, limit: Limit) -> tuple[Text, list[str]]:
    """Return a function that renders a template of the recipe over a row's columns, and the columns that the template
    names. JSON text of nested columns is parsed first.

    setting: `prompt_template` or `response_template`; meta: `columns` and perhaps `nested`, names of columns."""
    template = RowTemplate(f"format.{setting}", getattr(config, setting), meta["columns"], limit)
    nested = meta.get("nested", ())

    def text(row: Row, where: str) -> str:
        objects = {name: parsed(row, name, where) for name in nested if name in row}
        return template.render({**row, **objects}, where)

    return text, template.reads


def instruction_prompt(config: FormatConfig, meta: Meta) -> Text:
    """Return a function that writes an instruction row's prompt, up to the answer, in the words that `format.style`
    names. meta: `columns`, the names of the rows' columns."""
    _present("format.instruction", config.instruction, meta)
    instruction, context = _column(config.instruction), _column(config.context)
    words = STYLES[config.style]
    return lambda row, where: words(instruction(row, where), context(row, where))


def _chat(config: FormatConfig, meta: Meta, chat: Meta | None, limit: Limit) -> Maker:
    _present("format.messages", config.messages, meta)
    columns = Columns(config.messages, config.tools, config.documents, ARGUMENTS)
    special = special_pattern(tuple(chat["texts"])) if chat else None
    templates = chat_templates_of(config, chat, limit) if chat else {}
    last = config.turns == "last"

    def make(row: Row, where: str) -> Made:
        given = conversation_of(row, columns, where)
        template = templates.get("tools" if given.tools is not None else "template", templates.get("template"))
        if template:
            made = templated(given, template, where, last=last, special=special)
        else:
            made = Made([sections(given.messages, where, last=last)])
        taught = [parts for parts in made.examples if any(part["train"] and part["text"].strip() for part in parts)]
        return Made([{"parts": parts} for parts in taught], made.notes)

    return make


def chat_templates_of(config: FormatConfig, chat: Meta, limit: Limit = no_limit) -> dict[str, ChatTemplate]:
    """Return the chat templates: `template` and, if the tokenizer has another one for conversations with tools, `tools`.
    chat: from `chat_document`."""
    return {
        name: ChatTemplate(
            chat["name"],
            chat[name],
            chat["special"],
            date=config.date,
            arguments=config.template_arguments,
            limit=limit,
        )
        for name in ("template", "tools")
        if chat.get(name)
    }


def _tell_unread(config: FormatConfig, meta: Meta, chat: Meta | None, out: Workdir) -> None:
    """Warn if the rows have tools or documents that the chat template does not read."""
    read = {name for template in chat_templates_of(config, chat).values() for name in template.names} if chat else set()
    for variable, column in (("tools", config.tools), ("documents", config.documents)):
        if column in meta["columns"] and variable not in read:
            out.warn(f"the rows have a column {column}, and the chat template does not write {variable}")


def chat_document(config: FormatConfig, folder: Path | None) -> Meta:
    """Return the chat template of the recipe or of the model's tokenizer, as JSON. folder: the tokenizer's; None if the
    model brings none.

    template: Jinja; tools: another template for conversations with tools, or null; name: for errors; special: role ->
    special token; texts: all special tokens. Raises ConfigError when the tokenizer has no chat template."""
    special = (special_tokens(folder) if folder else None) or {}
    found = {"special": special, "texts": list(special_texts(folder)) if folder else []}
    if config.chat_template != "tokenizer":
        return {"template": config.chat_template, "name": "format.chat_template", **found}
    templates = chat_templates(folder) if folder else {}
    if "default" not in templates:
        raise ConfigError(
            "format.chat_template: the tokenizer of model.source has no chat template",
            "set it to `sections` (plain headings), or to a Jinja template; or use a chat model's tokenizer",
        )
    name = "the tokenizer's chat template"
    return {"template": templates["default"], "tools": templates.get("tool_use"), "name": name, **found}


def _text(config: FormatConfig, meta: Meta, limit: Limit = no_limit) -> RowMaker:
    columns = meta["text"] or [config.text]
    _present("format.text", columns[0], meta)

    def make(row: Row, where: str) -> Row | None:
        text = config.separator.join(row[name] or "" for name in columns)
        return {"parts": [{"text": text, "train": True}]} if text.strip() else None

    return make


MAKERS: dict[str, Callable[..., RowMaker]] = {
    "classification": _classification,
    "instruction": _instruction,
    "text": _text,
}


def _column(name: str | None) -> Text:
    """Return a function that maps a row to the column's value as text, or to "" where the value is missing."""

    def read(row: Row, where: str) -> str:
        value = row.get(name) if name else None
        return "" if value is None else str(value)

    return read


def _present(setting: str, name: str, meta: Meta) -> None:
    if name not in meta["columns"]:
        close = difflib.get_close_matches(name, meta["columns"], 1, 0.5)
        there = ", ".join(meta["columns"])
        fix = f"did you mean {close[0]}?" if close else f"set {setting}, or rename with data.columns.{name}=..."
        raise ConfigError(f"{setting}: the rows have no column {name} (they have {there})", fix)
