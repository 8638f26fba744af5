"""Make training examples from rows, as the setting `format.task` says: a text and a label, or the parts of a text (its
pieces in order, each with a flag that says whether it is trained on).

Fails with ConfigError for a column that the rows lack or a wrong template."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.chat import Made, sections, templated
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import Columns, Row, conversation_of, parsed
from trnflow.tasks.data.format.instruction_styles import STYLES
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import ChatTemplate, Limit, RowTemplate, no_limit
from trnflow.tasks.data.special_tokens import chat_templates, special_texts, special_tokens
from trnflow.tasks.errors import ConfigError, DataError

ARGUMENTS = "chat_template_kwargs"
"""The column with a row's own variables for the chat template."""

Text = Callable[[Row, str], str]
RowMaker = Callable[[Row, str], Row | None]
Maker = Callable[[Row, str], Made]
"""A function that makes examples from a row. Its second argument is the row's name for errors. An example is a dict
with `text` and `label`, or with `parts`. A `RowMaker` makes at most one example, a `Text` function a text."""


def maker_of(config: FormatConfig, meta: Meta, chat: Meta | None, limit: Limit) -> Maker:
    """Return the function that makes training examples (a text with a label, or with flags for what is trained on) from
    a row, as the setting `format.task` says.

    meta: the metadata of the rows' artifact (`load_data`); chat: the chat template, from `chat_document`, or None where
    none is used; limit: a function that takes a row's name and returns the context, such as a time limit, in which the
    row's templates are rendered. Raises ConfigError for a setting that does not fit the rows, DataError for
    classification with one class only."""
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
    """Return a function and a list of names, for a template of the recipe. The function takes a row and the row's name,
    and returns the text that the template makes of the row's columns; it first parses the JSON text of nested columns
    (lists and objects). The list has the names of the columns that the template uses.

    setting: `prompt_template` or `response_template`, the setting of `config` that holds the template; meta: a dict
    with `columns`, the names of the rows' columns, and perhaps `nested`, those of columns with lists or objects; limit:
    a function that takes a row's name and returns the context, such as a time limit, in which the row is rendered."""
    template = RowTemplate(f"format.{setting}", getattr(config, setting), meta["columns"], limit)
    nested = meta.get("nested", ())

    def text(row: Row, where: str) -> str:
        objects = {name: parsed(row, name, where) for name in nested if name in row}
        return template.render({**row, **objects}, where)

    return text, template.reads


def instruction_prompt(config: FormatConfig, meta: Meta) -> Text:
    """Return a function that writes the prompt of an instruction row, that is the text before the answer, in the
    wording of the data set that `format.style` names (`dolly` or `alpaca`). meta: a dict with `columns`, the names of
    the rows' columns. Raises ConfigError if the rows lack the column `format.instruction`."""
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
    """Parse the chat templates and return {name: template}: `template`, and if the tokenizer has another template for
    conversations with tools, `tools`. chat: from `chat_document`; limit: a function that takes a row's name and returns
    the context, such as a time limit, in which the row is rendered."""
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


def chat_document(config: FormatConfig, folder: Path | None) -> Meta:
    """Return the chat template that the recipe sets, or else that of the model's tokenizer, as a JSON object. folder:
    the tokenizer's folder; None if the model has no tokenizer.

    Keys of the object: `template`, the Jinja text; `tools`, another template for conversations with tools, null or
    missing if there is none; `name`, the template's name in errors; `special`, {role such as `eos_token`: special
    token}; `texts`, all special tokens. Raises ConfigError when the tokenizer's template is wanted and the tokenizer
    has none."""
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
