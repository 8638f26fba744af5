"""Make examples from rows, as `format.task` says: text and label, or parts. Raises ConfigError for a missing column or
a wrong template."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.format.chat import BLANK, RowExamples, teaches_nothing, written_by
from trnflow.tasks.data.format.config import FormatConfig, is_chat
from trnflow.tasks.data.format.conversation import Row, conversation_of, parsed
from trnflow.tasks.data.format.instruction_styles import STYLES, alpaca_opening, alpaca_round
from trnflow.tasks.data.format.marked_answers import marked_maker
from trnflow.tasks.data.format.own_rows import OwnMake, own_make
from trnflow.tasks.data.format.preferences import pair_maker
from trnflow.tasks.data.format.row_columns import (
    SYSTEM,
    chat_columns,
    context_column,
    named_column,
    refusing,
    taught_columns,
)
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import ChatTemplate, Limit, RowTemplate, no_limit
from trnflow.tasks.data.limited_process import Timer
from trnflow.tasks.data.special_tokens import chat_templates, special_texts, special_tokens
from trnflow.tasks.data.texts import NEGATIVE, PAIR, TOKEN, prompt_and_answer, text_of
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT, REJECTED
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.tagged_words import cut_word
from trnflow.tasks.kinds.unpaired_preference import COMPLETION, LABEL, are_marked

if TYPE_CHECKING:
    from trnflow.tasks.metadata import RowColumns, RowsMeta

CUT_WORD = "cut_word"
"""The note of a row with a span that begins or ends within a word."""
Text = Callable[[Row, str], str]
Texts = Callable[[Row, str], Row]
Parts = Callable[[Row, str], list[Row]]
RowMaker = Callable[[Row, str], Row | None]
Maker = Callable[[Row, str], RowExamples]
"""Makes examples, dicts with `text` and `label` or `parts`, from a row and its name for errors. A `RowMaker` makes at
most one, a `Text` a text, `Parts` a prompt."""


def maker_of(
    config: FormatConfig, meta: RowsMeta, chat: Meta | None, limit: Limit, own: OwnMake = lambda row, where: None
) -> Maker:
    """Return the function that makes examples from a row. own: calls `format.make`, if that is set. Raises ConfigError."""
    return refusing(_maker_of(config, meta, chat, limit, own), config, unread_columns(config, meta))


def _maker_of(config: FormatConfig, meta: RowsMeta, chat: Meta | None, limit: Limit, own: OwnMake) -> Maker:
    if config.task == "chat":
        return _chat(config, meta, chat, limit, own)
    if FORMATS[config.task].pairs:
        make_pairs = marked_maker if FORMATS[config.task].marked else pair_maker
        templates = chat_templates_of(config, chat, limit) if chat else {}
        return make_pairs(meta, chat_columns(config, meta["columns"]), chat, templates)
    if config.make:
        make = (_own_labelled if FORMATS[config.task].per_row else OWN_MAKERS[config.task])(config, meta, own)
    else:
        make = (_labelled if FORMATS[config.task].per_row else MAKERS[config.task])(config, meta, limit)

    def examples(row: Row, where: str) -> RowExamples:
        example = make(row, where)
        cut = cut_word(example) if example and config.task == "token_classification" else ""
        return RowExamples([example] if example else [], {CUT_WORD: cut} if cut else {})

    return examples


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
        texts = {"text": config.separator.join(text_of(row[name]) for name in joined)}
        if not config.text_pair:
            return texts
        whole = texts | {name: text_of(row[column]) for name, column in others.items()}
        for name, column in {"text": " and ".join(joined), **others}.items():
            if not whole[name].strip():
                raise DataError(f"{where}: the {places[name]} text of the pair ({column}) is empty", "repair the row")
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
    prompt: Parts
    if config.prompt_template:
        write, _ = row_template(config, "prompt_template", meta, limit)

        def prompt(row: Row, where: str) -> list[Row]:
            return [{"text": write(row, where), "train": False}]

    else:
        prompt = instruction_prompt(config, meta)
    answer = _answer(config, meta, limit)

    def make(row: Row, where: str) -> Row | None:
        response = answer(row, where)
        if not response.strip():
            return None
        *before, asked = prompt(row, where)
        return {"parts": [*before, *prompt_and_answer(asked["text"], response)]}

    return make


def row_template(config: FormatConfig, setting: str, meta: RowColumns, limit: Limit) -> tuple[Text, list[str]]:
    """Return ((row, name) -> text of a template, the columns that it uses); nested columns are parsed from JSON first."""
    template = RowTemplate(f"format.{setting}", getattr(config, setting), meta["columns"], limit)
    nested = meta.get("nested", ())

    def text(row: Row, where: str) -> str:
        objects = {name: parsed(row, name, where) for name in nested if name in row}
        return template.render({**row, **objects}, where)

    return text, template.reads


def instruction_prompt(config: FormatConfig, meta: RowColumns) -> Parts:
    """Return the function that writes a row's prompt in `format.style`; the responses of earlier rounds are trained on, each
    with its end. Raises ConfigError."""
    _present("format.instruction", config.instruction, meta)
    columns = meta["columns"]
    instruction, context = _column(config.instruction), _column(context_column(config, columns))
    words, taught = STYLES[config.style], set(taught_columns(config, columns))
    system = _column(named_column(config, SYSTEM, columns) if taught else None)

    def write(row: Row, where: str) -> list[Row]:
        asked, given, told = instruction(row, where), context(row, where), system(row, where).strip()
        rounds = rounds_of(row, config.history, where) if taught else []
        if not (told or rounds):
            return [{"text": words(asked, given), "train": False}]
        before, parts = f"{alpaca_opening(given, told)}\n\n", []
        for question, response in rounds:
            taught_round = config.turns == "all"
            parts.append({"text": before + alpaca_round(question), "train": False, "ends_prompt": taught_round})
            parts.append({"text": response, "train": taught_round})
            parts.append({"text": "", "train": taught_round, TOKEN: "eos_token"})
            before = "\n\n"
        return [*parts, {"text": before + alpaca_round(asked, given), "train": False}]

    return write


def rounds_of(row: Row, column: str | None, where: str) -> list[tuple[str, str]]:
    """Return the [instruction, response] of a history. Raises DataError for another shape."""
    given = parsed(row, column, where)
    rounds = given or []
    if not isinstance(rounds, list) or not all(
        isinstance(each, list) and len(each) == 2 and all(isinstance(text, str) for text in each) for each in rounds
    ):
        raise DataError(
            f"{where}: the column {column} is {str(given)[:60]!r}",
            "give a list of [instruction, response]; format.history=null leaves the column alone",
        )
    return [(question, response) for question, response in rounds]


def unread_columns(config: FormatConfig, meta: RowsMeta) -> list[str]:
    """Return the columns of the rows that no example is made of. Raises ConfigError for a wrong template."""
    if config.make:  # it gets the whole row
        return []
    columns, read = meta["columns"], {*FORMATS[config.task].columns(config)}
    talks = config.task == "chat" or (FORMATS[config.task].pairs and is_chat(config, meta))
    read |= {name or "" for name in chat_columns(config, columns)} if talks else set()
    if FORMATS[config.task].pairs:
        marked = FORMATS[config.task].marked and are_marked(columns)
        read = read - {config.messages} | ({PROMPT, COMPLETION, LABEL} if marked else {PROMPT, CHOSEN, REJECTED})
    elif config.task == "chat":
        pass
    elif config.prompt_template:
        read |= {*row_template(config, "prompt_template", meta, no_limit)[1]}
    elif config.task == "instruction":
        read |= {config.instruction, context_column(config, columns) or "", *taught_columns(config, columns)}
    else:
        read |= {*meta["text"]} or {config.text}
    if config.task == "instruction":
        template = config.response_template
        read |= {*row_template(config, "response_template", meta, no_limit)[1]} if template else {config.response}
    return [name for name in columns if name not in read]


def _chat(config: FormatConfig, meta: RowsMeta, chat: Meta | None, limit: Limit, own: OwnMake) -> Maker:
    if not config.make:
        _present("format.messages", config.messages, meta)
    columns = chat_columns(config, meta["columns"])
    special = special_pattern(tuple(chat["texts"])) if chat else None
    templates = chat_templates_of(config, chat, limit) if chat else {}
    last = config.turns == "last"

    def make(row: Row, where: str) -> RowExamples:
        made = own(row, where) if config.make else {}
        if made is None:
            return RowExamples([])
        given = conversation_of({**row, config.messages: made["messages"]} if made else row, columns, where)
        written = written_by(templates, given, where, last=last, special=special)
        taught = [parts for parts in written.examples if any(part["train"] and part["text"].strip() for part in parts)]
        blank = {BLANK: ""} if taught and teaches_nothing(given.messages, where, last) else {}
        return RowExamples([{"parts": parts} for parts in taught], {**written.notes, **blank})

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
        text = config.separator.join(text_of(row[name]) for name in columns)
        return {"parts": [{"text": text, "train": True}]} if text.strip() else None

    return make


MAKERS: dict[str, Callable[..., RowMaker]] = {"instruction": _instruction, "text": _text}


OWN_MAKERS: dict[str, Callable[..., RowMaker]] = {"instruction": _own_instruction, "text": _own_text}


def _column(name: str | None) -> Text:
    """Return a function from a row to a column's text, "" if missing."""

    return lambda row, where: text_of(row.get(name)) if name else ""


def _present(setting: str, name: str, meta: RowColumns) -> None:
    if name not in meta["columns"]:
        close = difflib.get_close_matches(name, meta["columns"], 1, 0.5)
        there = ", ".join(meta["columns"])
        fix = f"did you mean {close[0]}?" if close else f"set {setting}, or rename with data.columns.{name}=..."
        if {CHOSEN, REJECTED} <= {*meta["columns"]}:
            fix = "set format.task=preference, which these columns suit"
        raise ConfigError(f"{setting}: the rows have no column {name} (they have {there})", fix)
