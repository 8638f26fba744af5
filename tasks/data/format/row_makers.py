"""Make examples from rows, as `format.task` says: text and label, or parts. Raises ConfigError for a missing column or
a wrong template."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.format.chat import RowExamples, sections, templated
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import ChatColumns, Row, conversation_of, parsed
from trnflow.tasks.data.format.instruction_styles import STYLES
from trnflow.tasks.data.format.marked_answers import marked_maker
from trnflow.tasks.data.format.own_rows import OwnMake, own_make
from trnflow.tasks.data.format.preferences import pair_maker
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import ChatTemplate, Limit, RowTemplate, no_limit
from trnflow.tasks.data.limited_process import Timer
from trnflow.tasks.data.special_tokens import chat_templates, special_texts, special_tokens
from trnflow.tasks.data.texts import NEGATIVE, PAIR, prompt_and_answer
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT, REJECTED
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.unpaired_preference import COMPLETION, LABEL, are_marked

if TYPE_CHECKING:
    from trnflow.tasks.metadata import RowColumns, RowsMeta

ARGUMENTS = "chat_template_kwargs"
"""The column with a row's own variables for the chat template."""

Text = Callable[[Row, str], str]
Texts = Callable[[Row, str], Row]
RowMaker = Callable[[Row, str], Row | None]
Maker = Callable[[Row, str], RowExamples]
"""Makes examples, dicts with `text` and `label` or `parts`, from a row and its name for errors. A `RowMaker` makes at
most one, a `Text` a text."""


def maker_of(
    config: FormatConfig, meta: RowsMeta, chat: Meta | None, limit: Limit, own: OwnMake = lambda row, where: None
) -> Maker:
    """Return the function that makes examples from a row. own: calls `format.make`, if that is set. Raises ConfigError."""
    if config.task == "chat":
        return _chat(config, meta, chat, limit, own)
    if FORMATS[config.task].pairs:
        make_pairs = marked_maker if FORMATS[config.task].marked else pair_maker
        return make_pairs(meta, chat, chat_templates_of(config, chat, limit) if chat else {})
    if config.make:
        make = (_own_labelled if FORMATS[config.task].per_row else OWN_MAKERS[config.task])(config, meta, own)
    else:
        make = (_labelled if FORMATS[config.task].per_row else MAKERS[config.task])(config, meta, limit)
    return lambda row, where: RowExamples([example] if (example := make(row, where)) else [])


def maker_from(arguments: Meta, limit: Limit) -> Maker:
    """Return the function that makes examples, as `arguments` say: config, meta, part, classes and code."""
    config, meta, chat = FormatConfig.model_validate(arguments["config"]), arguments["meta"], arguments["part"]["chat"]
    if not arguments["code"]:
        return maker_of(config, meta, chat, limit)
    wall = limit.by_the_wall(config.row_seconds) if isinstance(limit, Timer) else limit
    own = own_make(config, Source(**arguments["code"]), meta.get("nested", ()), arguments["classes"], wall)
    return maker_of(config, meta, chat, limit, own)


def _labelled(config: FormatConfig, meta: RowsMeta, limit: Limit = no_limit) -> RowMaker:
    columns = meta["text"]
    texts: Texts | None = texts_of_row(config, columns) if columns else None
    if config.prompt_template:
        text = row_template(config, "prompt_template", meta, limit)[0]

        def texts(row: Row, where: str) -> Row:
            return {"text": text(row, where)}

    elif config.text_pair and {*columns} <= {config.text_pair}:
        raise ConfigError(f"format.text_pair: {config.text_pair} is the only text", "name the first one in data.text")
    return FORMATS[config.task].example_of(config, meta["labels"] or [], meta.get("nested", ()), texts)


def texts_of_row(config: FormatConfig, columns: Iterable[str]) -> Texts:
    """Return the function from a row to `text`, its text columns joined; with `format.text_pair` also to `text_pair`. Of
    a pair, it raises DataError for an empty text."""
    joined = [name for name in columns if name not in (config.text_pair, config.negative)]
    others = {PAIR: config.text_pair or ""} | ({NEGATIVE: config.negative} if config.negative else {})
    places = {"text": "first", PAIR: "second", NEGATIVE: "third"}

    def read(row: Row, where: str) -> Row:
        texts = {"text": config.separator.join(str(row[name]) for name in joined)}
        if not config.text_pair:
            return texts
        whole = texts | {name: "" if row[column] is None else str(row[column]) for name, column in others.items()}
        for name, column in {"text": " and ".join(joined), **others}.items():
            if not whole[name].strip():
                raise DataError(
                    f"{where}: the {places[name]} text of the pair ({column}) is empty",
                    "repair the row",
                )
        return whole

    return read


def _own_labelled(config: FormatConfig, meta: RowsMeta, own: OwnMake) -> RowMaker:
    target = FORMATS[config.task].target_of(config, meta["labels"] or [], meta.get("nested", ()))
    return lambda row, where: {"label": target(row, where), **made} if (made := own(row, where)) else None


def _own_text(config: FormatConfig, meta: RowsMeta, own: OwnMake) -> RowMaker:
    return lambda row, where: {"parts": [{**made, "train": True}]} if (made := own(row, where)) else None


def _own_instruction(config: FormatConfig, meta: RowsMeta, own: OwnMake) -> RowMaker:
    answer = _answer(config, meta, no_limit)

    def make(row: Row, where: str) -> Row | None:
        response = answer(row, where)
        made = own(row, where) if response.strip() else None
        return made and {"parts": prompt_and_answer(made["text"], response)}

    return make


def _answer(config: FormatConfig, meta: RowsMeta, limit: Limit) -> Text:
    if config.response_template:
        return row_template(config, "response_template", meta, limit)[0]
    _present("format.response", config.response, meta)
    return _column(config.response)


def _instruction(config: FormatConfig, meta: RowsMeta, limit: Limit = no_limit) -> RowMaker:
    if config.prompt_template:
        prompt, _ = row_template(config, "prompt_template", meta, limit)
    else:
        prompt = instruction_prompt(config, meta)
    answer = _answer(config, meta, limit)

    def make(row: Row, where: str) -> Row | None:
        response = answer(row, where)
        if not response.strip():
            return None
        return {"parts": prompt_and_answer(prompt(row, where), response)}

    return make


def row_template(config: FormatConfig, setting: str, meta: RowColumns, limit: Limit) -> tuple[Text, list[str]]:
    """Return ((row, name) -> text of a template, the columns that it uses); nested columns are parsed from JSON first."""
    template = RowTemplate(f"format.{setting}", getattr(config, setting), meta["columns"], limit)
    nested = meta.get("nested", ())

    def text(row: Row, where: str) -> str:
        objects = {name: parsed(row, name, where) for name in nested if name in row}
        return template.render({**row, **objects}, where)

    return text, template.reads


def instruction_prompt(config: FormatConfig, meta: RowColumns) -> Text:
    """Return the function that writes a row's prompt in `format.style`. Raises ConfigError."""
    _present("format.instruction", config.instruction, meta)
    instruction, context = _column(config.instruction), _column(context_column(config, meta["columns"]))
    words = STYLES[config.style]
    return lambda row, where: words(instruction(row, where), context(row, where))


def context_column(config: FormatConfig, columns: Collection[str]) -> str | None:
    """Return the column of an instruction's context: `input`, as Alpaca has it, where its style has no `context`."""
    alpaca = config.style == "alpaca" and config.context == "context"
    return "input" if alpaca and "context" not in columns and "input" in columns else config.context


def unread_columns(config: FormatConfig, meta: RowsMeta) -> list[str]:
    """Return the columns of the rows that no example is made of. Raises ConfigError for a wrong template."""
    if config.make:  # it gets the whole row
        return []
    columns, read = meta["columns"], {*FORMATS[config.task].columns(config)}
    if FORMATS[config.task].pairs:
        marked = FORMATS[config.task].marked and are_marked(columns)
        read |= {PROMPT, COMPLETION, LABEL} if marked else {PROMPT, CHOSEN, REJECTED}
    elif config.task == "chat":
        read |= {config.messages, config.tools or "", config.documents or "", ARGUMENTS}
    elif config.prompt_template:
        read |= {*row_template(config, "prompt_template", meta, no_limit)[1]}
    elif config.task == "instruction":
        read |= {config.instruction, context_column(config, columns) or ""}
    else:
        read |= {*meta["text"]} or {config.text}
    if config.task == "instruction":
        template = config.response_template
        read |= {*row_template(config, "response_template", meta, no_limit)[1]} if template else {config.response}
    return [name for name in columns if name not in read]


def _chat(config: FormatConfig, meta: RowsMeta, chat: Meta | None, limit: Limit, own: OwnMake) -> Maker:
    if not config.make:
        _present("format.messages", config.messages, meta)
    columns = ChatColumns(config.messages, config.tools, config.documents, ARGUMENTS)
    special = special_pattern(tuple(chat["texts"])) if chat else None
    templates = chat_templates_of(config, chat, limit) if chat else {}
    last = config.turns == "last"

    def make(row: Row, where: str) -> RowExamples:
        made = own(row, where) if config.make else {}
        if made is None:
            return RowExamples([])
        given = conversation_of({**row, config.messages: made["messages"]} if made else row, columns, where)
        template = templates.get("tools" if given.tools is not None else "template", templates.get("template"))
        if template:
            examples_of_row = templated(given, template, where, last=last, special=special)
        else:
            examples_of_row = RowExamples([sections(given.messages, where, last=last)])
        taught = [
            parts for parts in examples_of_row.examples if any(part["train"] and part["text"].strip() for part in parts)
        ]
        return RowExamples([{"parts": parts} for parts in taught], examples_of_row.notes)

    return make


def chat_templates_of(config: FormatConfig, chat: Meta, limit: Limit = no_limit) -> dict[str, ChatTemplate]:
    """Parse the chat templates: {"template", perhaps "tools" for conversations with tools}."""
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
    """Return the recipe's chat template, else the tokenizer's, as JSON: template, tools (or null), name (for errors),
    special {role: token}, texts (all special tokens). Raises ConfigError if the tokenizer has none."""
    special = (special_tokens(folder) if folder else None) or {}
    tokens = {"special": special, "texts": list(special_texts(folder)) if folder else []}
    if config.chat_template != "tokenizer":
        return {"template": config.chat_template, "name": "format.chat_template", **tokens}
    templates = chat_templates(folder) if folder else {}
    if "default" not in templates:
        raise ConfigError(
            "format.chat_template: the tokenizer of model.source has no chat template",
            "set it to `sections` (plain headings), or to a Jinja template; or use a chat model's tokenizer",
        )
    name = "the tokenizer's chat template"
    return {"template": templates["default"], "tools": templates.get("tool_use"), "name": name, **tokens}


def _text(config: FormatConfig, meta: RowsMeta, limit: Limit = no_limit) -> RowMaker:
    columns = meta["text"] or [config.text]
    _present("format.text", columns[0], meta)

    def make(row: Row, where: str) -> Row | None:
        text = config.separator.join(row[name] or "" for name in columns)
        return {"parts": [{"text": text, "train": True}]} if text.strip() else None

    return make


MAKERS: dict[str, Callable[..., RowMaker]] = {
    "instruction": _instruction,
    "text": _text,
}


OWN_MAKERS: dict[str, Callable[..., RowMaker]] = {
    "instruction": _own_instruction,
    "text": _own_text,
}


def _column(name: str | None) -> Text:
    """Return a function from a row to a column's text, "" if missing."""

    def read(row: Row, where: str) -> str:
        value = row.get(name) if name else None
        return "" if value is None else str(value)

    return read


def _present(setting: str, name: str, meta: RowColumns) -> None:
    if name not in meta["columns"]:
        close = difflib.get_close_matches(name, meta["columns"], 1, 0.5)
        there = ", ".join(meta["columns"])
        fix = f"did you mean {close[0]}?" if close else f"set {setting}, or rename with data.columns.{name}=..."
        if {CHOSEN, REJECTED} <= {*meta["columns"]}:
            fix = "set format.task=preference, which these columns suit"
        raise ConfigError(f"{setting}: the rows have no column {name} (they have {there})", fix)
