"""Turn rows into what a model reads: one text and a label, or parts of a text of which some are trained on.

Columns come by name, or through sandboxed Jinja templates that see all kept columns; conversations through the chat
template of the model's tokenizer. Rows without an answer, or without any text, teach nothing: they are dropped and
counted. Streams in parts of 32,768 rows.
Fails with ConfigError for a column the rows lack or a template that is wrong, DataError for a row that does not fit.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from tasks.artifact import Artifact, Input, Meta, Source
from tasks.config import StageConfig, keyed_params
from tasks.errors import ConfigError, DataError
from tasks.model_source import tokenizer_folder
from tasks.stage import Keyed, Part, Workdir, stage
from tasks.text.chat import messages_of, sections, templated
from tasks.text.special import chat_template, special_texts, special_tokens
from tasks.text.tables import read_rows, write_rows
from tasks.text.templates import chat_renderer, row_template

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 4096
PART = 8 * BATCH
"""Rows that a worker formats at once."""

Row = dict[str, Any]
Made = dict[str, Any] | None
Maker = Callable[[Row, str], Made]


class FormatConfig(StageConfig):
    """task: `classification` (text columns joined by `separator`, and the label), `instruction` (sections Instruction,
    Context when there is one, Answer; only the answer is trained on), `chat` (a column of messages, `role` and `content`
    or ShareGPT's `from` and `value`; trained on the assistant's turns), `text` (one column, all of it trained on).

    instruction, context, response, messages, text: columns; context may be missing from the rows. style: of an
    instruction's sections, Dolly's or Alpaca's. prompt_template, response_template: Jinja over the row's columns, instead
    of the sections or the joined text. chat_template: `tokenizer` (its own), `sections` (plain headings), or Jinja as
    tokenizers carry it. turns: the assistant's that are trained on."""

    task: Literal["classification", "instruction", "chat", "text"] = "classification"
    separator: str = "\n"
    instruction: str = "instruction"
    context: str | None = "context"
    response: str = "response"
    messages: str = "messages"
    text: str = "text"
    style: Literal["dolly", "alpaca"] = "dolly"
    prompt_template: str | None = None
    response_template: str | None = None
    chat_template: str = "tokenizer"
    turns: Literal["all", "last"] = "all"

    @model_validator(mode="after")
    def _templates_have_a_task(self) -> FormatConfig:
        if self.prompt_template and self.task not in ("classification", "instruction"):
            raise ValueError(f"`prompt_template` is for classification and instruction, not {self.task}")
        if self.response_template and self.task != "instruction":
            raise ValueError(f"`response_template` is for instruction, not {self.task}")
        return self


def _inputs(config: FormatConfig, inputs: Keyed) -> Meta:
    """The model counts only where its tokenizer's chat template, and the special tokens that it names, are read."""
    rows, model = inputs["rows"], inputs["model"]
    assert isinstance(rows, Artifact) and isinstance(model, Source)
    return {"rows": rows.digest, **({"tokenizer": model.identity["tokenizer"]} if config.task == "chat" else {})}


@stage(kind="texts", inputs=_inputs)
def format_prompts(config: FormatConfig, rows: Input, model: Source, out: Workdir) -> Meta:
    """rows -> `<split>.parquet`: classification `text: string, label: int64`, else `parts: list<struct<text, train>>`.

    meta: task (`classification` or `causal_lm`), labels, splits {name: rows}, dropped {reason: rows}, framed (the texts
    hold their special tokens, bos and eos, as a chat template writes them), templates (the recipe's, whose special tokens
    are such)."""
    classify = config.task == "classification"
    framed = _is_framed(config)
    chat = _chat_template(config, model) if framed else None
    _maker(config, rows.meta, chat)  # a wrong setting is said before any work begins
    kept, dropped = {}, 0
    for split, count in rows.meta["splits"].items():
        kept[split] = _format_split(split, count, config, chat, rows, out)
        dropped += count - kept[split]
        if kept[split] == 0:
            raise DataError(
                f"the split {split} is empty: none of its {count} rows has an answer", "check format's columns"
            )
    if dropped:
        out.info(f"rows without an answer dropped: {dropped}")
    return {
        "task": "classification" if classify else "causal_lm",
        "labels": rows.meta["labels"] if classify else None,
        "splits": kept,
        "dropped": {"empty": dropped} if dropped else {},
        "framed": framed,
        "templates": [text for text in (config.prompt_template, config.response_template) if text],
    }


def _schema(config: FormatConfig) -> pa.Schema:
    import pyarrow as pa

    if config.task == "classification":
        return pa.schema([("text", pa.string()), ("label", pa.int64())])
    plain = [("plain", pa.bool_())] if _is_framed(config) else []
    return pa.schema([("parts", pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_()), *plain])))])


def _is_framed(config: FormatConfig) -> bool:
    return config.task == "chat" and config.chat_template != "sections"


def _format_split(split: str, count: int, config: FormatConfig, chat: Meta | None, rows: Input, out: Workdir) -> int:
    """The number of rows written."""
    starts = range(0, count, PART)
    parts = [_part(config, chat, rows, split, first, min(PART, count - first)) for first in starts]
    with closing(out.parts(format_rows, config, {"rows": rows}, parts)) as made:
        tables = _tables(split, count, parts, made, out)
        return write_rows(tables, _schema(config), out.path / f"{split}.parquet", lambda done: None)


def _part(config: FormatConfig, chat: Meta | None, rows: Input, split: str, first: int, count: int) -> Part:
    arguments = {"split": split, "first": first, "count": count, "chat": chat}
    identity = {"params": {**keyed_params(config), **arguments}, "inputs": {"rows": rows.digest}}
    return Part(identity, arguments)


def _tables(
    split: str, count: int, parts: list[Part], made: Iterable[tuple[Path, Meta]], out: Workdir
) -> Iterator[pa.Table]:
    import pyarrow as pa

    for part, (here, _) in zip(parts, made, strict=True):
        with pa.OSFile(str(here / "texts.arrow")) as file:  # read, not mapped: the folder goes before the table does
            yield pa.ipc.open_file(file).read_all()
        out.progress(part.arguments["first"] + part.arguments["count"], count, f"{split} rows")


def format_rows(config: FormatConfig, rows: Input, part: Meta, out: Workdir) -> Meta:
    """Rows `first`..`first + count` of `split` -> `texts.arrow`. chat: of `_chat_template`, or null."""
    import pyarrow as pa

    schema, maker, done = _schema(config), _maker(config, rows.meta, part["chat"]), part["first"]
    table = read_rows(rows.path / f"{part['split']}.parquet", part["first"], part["count"])
    with pa.OSFile(str(out.path / "texts.arrow"), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in table.to_batches(BATCH):
            made = [maker(row, f"split {part['split']} row {done + n}") for n, row in enumerate(batch.to_pylist(), 1)]
            writer.write_table(pa.Table.from_pylist([item for item in made if item is not None], schema))
            done += batch.num_rows
    return {}


def _maker(config: FormatConfig, meta: Meta, chat: Meta | None) -> Maker:
    return _chat(config, meta, chat) if config.task == "chat" else MAKERS[config.task](config, meta)


def _classification(config: FormatConfig, meta: Meta) -> Maker:
    if meta["labels"] is None:
        raise ConfigError("format.task: classification needs labels, and the data has none", "set data.label")
    columns = meta["text"]
    text = row_template("format.prompt_template", config.prompt_template) if config.prompt_template else None
    if not columns and text is None:
        raise ConfigError("format.task: classification needs to know the text", "set data.text")

    def make(row: Row, where: str) -> Made:
        return {
            "text": text(row) if text else config.separator.join(row[name] for name in columns),
            "label": row["label"],
        }

    return make


def _instruction(config: FormatConfig, meta: Meta) -> Maker:
    templates = (config.prompt_template, config.response_template)
    prompt = row_template("format.prompt_template", templates[0]) if templates[0] else _sections(config, meta)
    if templates[1]:
        answer = row_template("format.response_template", templates[1])
    else:
        _present("format.response", config.response, meta)
        answer = _column(config.response)

    def make(row: Row, where: str) -> Made:
        response = answer(row)
        if not response.strip():
            return None
        return {"parts": [{"text": prompt(row), "train": False}, {"text": response, "train": True}]}

    return make


def _sections(config: FormatConfig, meta: Meta) -> Callable[[Row], str]:
    """The prompt up to the answer, in the words of Dolly's tutorial or of Alpaca's."""
    _present("format.instruction", config.instruction, meta)
    instruction, context = _column(config.instruction), _column(config.context)
    words = {"dolly": _dolly, "alpaca": _alpaca}[config.style]
    return lambda row: words(instruction(row), context(row))


def _dolly(instruction: str, context: str) -> str:
    given = [f"### Context\n{context}"] if context else []
    return "\n\n".join([f"### Instruction\n{instruction}", *given, "### Answer\n"])


def _alpaca(instruction: str, context: str) -> str:
    given = [f"### Input:\n{context}"] if context else []
    paired = ", paired with an input that provides further context" if context else ""
    opening = (
        f"Below is an instruction that describes a task{paired}. "
        "Write a response that appropriately completes the request."
    )
    return "\n\n".join([opening, f"### Instruction:\n{instruction}", *given, "### Response:\n"])


def _chat(config: FormatConfig, meta: Meta, chat: Meta | None) -> Maker:
    _present("format.messages", config.messages, meta)
    render = chat_renderer(chat["name"], chat["template"], chat["special"]) if chat else None
    special = tuple(chat["texts"]) if chat else ()

    def make(row: Row, where: str) -> Made:
        messages = messages_of(row[config.messages], where)
        last = config.turns == "last"
        parts = (
            templated(messages, render, where, last=last, special=special)
            if render
            else list(sections(messages, last=last))
        )
        return {"parts": parts} if any(part["train"] and part["text"].strip() for part in parts) else None

    return make


def _chat_template(config: FormatConfig, model: Source) -> Meta:
    """The chat template of the recipe, or of the model's tokenizer: template, name (for messages), special (tokens by role),
    texts (of all special tokens)."""
    folder = tokenizer_folder(model)
    special = (special_tokens(folder) if folder else None) or {}
    found = {"special": special, "texts": list(special_texts(folder)) if folder else []}
    if config.chat_template != "tokenizer":
        return {"template": config.chat_template, "name": "format.chat_template", **found}
    template = chat_template(folder) if folder else None
    if template is None:
        raise ConfigError(
            "format.chat_template: the tokenizer of model.source has no chat template",
            "set it to `sections` (plain headings), or to a Jinja template; or use a chat model's tokenizer",
        )
    return {"template": template, "name": "the tokenizer's chat template", **found}


def _text(config: FormatConfig, meta: Meta) -> Maker:
    columns = meta["text"] or [config.text]
    _present("format.text", columns[0], meta)

    def make(row: Row, where: str) -> Made:
        text = config.separator.join(row[name] or "" for name in columns)
        return {"parts": [{"text": text, "train": True}]} if text.strip() else None

    return make


MAKERS: dict[str, Callable[[FormatConfig, Meta], Maker]] = {
    "classification": _classification,
    "instruction": _instruction,
    "text": _text,
}


def _column(name: str | None) -> Callable[[Row], str]:
    """The column's text; nothing where it is missing."""

    def read(row: Row) -> str:
        value = row.get(name) if name else None
        return "" if value is None else str(value)

    return read


def _present(setting: str, name: str, meta: Meta) -> None:
    if name not in meta["columns"]:
        close = difflib.get_close_matches(name, meta["columns"], 1, 0.5)
        there = ", ".join(meta["columns"])
        fix = f"did you mean {close[0]}?" if close else f"set {setting}, or rename with data.columns.{name}=..."
        raise ConfigError(f"{setting}: the rows have no column {name} (they have {there})", fix)
