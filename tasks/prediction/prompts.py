"""Shape rows into what a trained model reads: as `format_prompts` did for training, but without label and answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.format.chat_prompts import prompt_writer
from trnflow.tasks.data.format.config import FormatConfig, is_chat, is_framed
from trnflow.tasks.data.format.conversation import Row, conversation_of
from trnflow.tasks.data.format.framed import settings_of
from trnflow.tasks.data.format.own_rows import HOOK, own_make
from trnflow.tasks.data.format.preferences import reader_and_writer
from trnflow.tasks.data.format.row_columns import chat_columns, context_column, taught_columns
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.format.row_makers import (
    chat_document,
    chat_templates_of,
    instruction_prompt,
    row_template,
    texts_of_row,
)
from trnflow.tasks.data.format.templates import IMPORTS, Limit, no_limit
from trnflow.tasks.data.limited_process import call_limited
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import recorded_code, refuse_missing
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT, REJECTED
from trnflow.tasks.kinds.registry import FORMATS, kind_of
from trnflow.tasks.kinds.reward import ANSWER
from trnflow.tasks.kinds.tagged_words import joined_words
from trnflow.tasks.system.home import home_folder

if TYPE_CHECKING:
    from trnflow.tasks.metadata import RowColumns

Parts = list[Meta]
"""Dicts with `text`, `train` (false) and perhaps `plain`: special tokens in it are read as text. Of a pair of texts two."""

Named = tuple[str, Row]
"""A row's name in errors, and the row."""

DECIMAL = "trnflow decimal"
"""The only key of a decimal number's object on its way to the process of a template."""

Writer = Callable[[Sequence[Named]], list[Parts]]


class Shape(NamedTuple):
    """How a row becomes the text that a model reads.

    Attributes:
        columns: That a row must have.
        optional: Read where a row has them.
        write: Returns the parts of each row. Templates run in a process of their own with limits (`write_rows`).
        templates: The recipe's, in which a spelled special token counts.
        is_chat: Whether the only column holds a conversation.
    """

    columns: list[str]
    optional: list[str]
    write: Writer
    templates: tuple[str, ...] = ()
    framed: bool = False
    is_chat: bool = False

    def of_text(self, text: str) -> Row:
        """Return the row of a bare text. Raises ConfigError for a model that reads several columns."""
        if len(self.columns) != 1:
            raise ConfigError(
                f"the model reads the columns {', '.join(self.columns)}, and a bare text is only one",
                "give rows with these columns: --file rows.jsonl",
            )
        value = [{"role": "user", "content": text}] if self.is_chat else text
        return {**dict.fromkeys(self.optional, None if self.is_chat else ""), self.columns[0]: value}

    def of_row(self, row: Row, where: str) -> Parts:
        """Return the parts of a row, as `of_rows`."""
        (parts,) = self.of_rows([(where, row)])
        return parts

    def of_rows(self, rows: Sequence[Named]) -> list[Parts]:
        """Return the parts of each row. Raises DataError for one that lacks a column."""
        for where, row in rows:
            empty = [column for column in self.columns if row.get(column) is None]
            if empty:
                raise DataError(f"{where}: the column {empty[0]} is missing or null", "give every row a text")
        return self.write([(where, {**dict.fromkeys(self.optional), **row}) for where, row in rows])


def shape_of(rows: RowFormat, folder: Path, code: Source | None = None) -> Shape:
    """Return the shape of the rows that `trnflow.json` describes.

    code: the user's own that made them; None: it is looked for from the working folder on. Raises ConfigError, CodeError
    if that is not at hand as it was.
    """
    config = _asking(rows)
    if rows.own:
        code = code or recorded_code(rows.own, Path.cwd(), home := home_folder(), Memo(home / "memo.db"))
        return _own(config.model_copy(update={"make": rows.own[HOOK]}), rows, folder, code)
    if kind_of(rows.task).pairs and kind_of(rows.task).per_row:
        return _answered(config, rows, folder)
    if config.task == "chat":
        return _chat(config, rows, folder)
    if config.prompt_template:
        return _templated(config, rows)
    if config.task == "instruction":
        write = instruction_prompt(config, {"columns": rows.columns})
        taught = [name for name in taught_columns(config, rows.columns) if name in rows.columns]
        optional = [*filter(None, [context_column(config, rows.columns)]), *taught]
        return Shape(
            [config.instruction],
            optional,
            _each(lambda row, where: [{**part, "train": False, "ends_prompt": False} for part in write(row, where)]),
        )
    if config.words:
        words = config.words
        return Shape([words], [], _each(lambda row, where: _plain(joined_words(row[words]))))
    columns = rows.text or [config.text]
    if FORMATS[config.task].apart:  # a vector is of one text, whichever it was in training
        columns = [name for name in columns if name not in (config.text_pair, config.negative)]
        config = config.model_copy(update={"text_pair": None, "negative": None})
    texts = texts_of_row(config, columns)
    write_texts = _each(lambda row, where: [part for text in texts(row, where).values() for part in _plain(text)])
    return Shape(columns, [], write_texts)


def write_rows(arguments: Meta, limit: Limit) -> Meta:
    """Return {"parts": of each row}, written by a template. arguments: config, rows (a `RowFormat`), chat, given: `Named`."""
    config, rows = FormatConfig.model_validate(arguments["config"]), RowFormat(**arguments["rows"])
    given = [(where, _decoded(row)) for where, row in arguments["given"]]
    if config.prompt_template:
        text, _ = row_template(config, "prompt_template", _columns(rows), limit)
        return {"parts": [_plain(text(row, where)) for where, row in given]}
    answer = _answer_writer(config, rows, arguments["chat"], limit)
    return {"parts": [answer(row, where) for where, row in given]}


def _limited(config: FormatConfig, rows: RowFormat, chat: Meta | None) -> Writer:
    """Return what calls `write_rows` in a limited process."""

    def write(given: Sequence[Named]) -> list[Parts]:
        document = config.model_dump(mode="json")
        coded = [(where, _coded(row)) for where, row in given]
        asked = {"config": document, "rows": rows._asdict(), "chat": chat, "given": coded, "imports": IMPORTS}
        return cast(list[Parts], call_limited(f"{__name__}:write_rows", asked)["parts"])

    return write


def _coded(value: Any) -> Any:
    """Return a row as JSON can hold it: a decimal, with which a template may count, as {DECIMAL: its text}."""
    if isinstance(value, Mapping):
        return {name: _coded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_coded(inner) for inner in value]
    return {DECIMAL: str(value)} if isinstance(value, Decimal) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return (
            Decimal(value[DECIMAL]) if value.keys() == {DECIMAL} else {n: _decoded(inner) for n, inner in value.items()}
        )
    return [_decoded(inner) for inner in value] if isinstance(value, list) else value


def _each(parts: Callable[[Row, str], Parts]) -> Writer:
    return lambda given: [parts(row, where) for where, row in given]


def _columns(rows: RowFormat) -> RowColumns:
    return {"columns": rows.columns, "nested": rows.nested}


def columns_of(rows: RowFormat) -> tuple[list[str], list[str]]:
    """Return (columns that a row must have, columns that it may have); no file is read. Raises ConfigError."""
    config = _asking(rows)
    if rows.own:
        return _own_columns(config, rows)
    if kind_of(rows.task).pairs and kind_of(rows.task).per_row:
        return [ANSWER], [PROMPT, *(_around(config, rows) if config.task == "chat" else ())]
    if config.task == "chat":
        return _chat_columns(config, rows)
    shape = shape_of(rows, Path())
    return shape.columns, shape.optional


def _asking(rows: RowFormat) -> FormatConfig:
    """Return the section `format`; of pairs what makes their prompts."""
    config = settings_of(rows)
    if not FORMATS[config.task].pairs:
        return config
    names = {"messages": PROMPT, "text": PROMPT}
    return config.model_copy(update={"task": "chat" if is_chat(config, {"nested": rows.nested}) else "text", **names})


def _answered(config: FormatConfig, rows: RowFormat, folder: Path) -> Shape:
    """Return the shape of a prompt and an answer, which are written as those of pairs are."""
    framed = config.task == "chat" and config.chat_template != "sections"
    chat = chat_document(config, folder) if framed else None
    write = _limited(config, rows, chat) if chat else _each(_answer_writer(config, rows, None, no_limit))
    optional = [PROMPT, *(_around(config, rows) if config.task == "chat" else ())]
    return Shape([ANSWER], optional, write, framed=framed)


def _answer_writer(
    config: FormatConfig, rows: RowFormat, chat: Meta | None, limit: Limit
) -> Callable[[Row, str], Parts]:
    """Return the function that writes a prompt and an answer. chat: as `chat_document`; None: without a template."""
    templates = chat_templates_of(config, chat, limit) if chat else {}
    read, write = reader_and_writer(rows.nested, chat_columns(config, rows.columns), chat, templates)

    def parts(row: Row, where: str) -> Parts:
        given = {**row, CHOSEN: row[ANSWER], REJECTED: row[ANSWER]}
        prompt, answer, _ = read(given, where)
        example: Parts = write(given, prompt, answer, where).examples[0]
        return example

    return parts


def _templated(config: FormatConfig, rows: RowFormat) -> Shape:
    """Return the shape of `format.prompt_template`."""
    assert config.prompt_template is not None
    _, named = row_template(config, "prompt_template", _columns(rows), no_limit)
    # all columns but the context must be there
    optional = [name for name in named if name == config.context]
    columns = [name for name in named if name not in optional]
    templates = (config.prompt_template, *((config.response_template,) if config.response_template else ()))
    return Shape(columns, optional, _limited(config, rows, None), templates)


def _chat(config: FormatConfig, rows: RowFormat, folder: Path) -> Shape:
    columns, optional = _chat_columns(config, rows)
    parts = _chat_parts(config, rows, folder)
    return Shape(columns, optional, parts, framed=config.chat_template != "sections", is_chat=True)


def _own(config: FormatConfig, rows: RowFormat, folder: Path, code: Source) -> Shape:
    """Return the shape of rows that a function of the user's makes texts of."""
    refuse_missing(code)
    make, (columns, optional) = own_make(config, code, (), None, no_limit), _own_columns(config, rows)
    is_chat = config.task == "chat"
    chat = _chat_parts(config, rows, folder) if is_chat else None

    def made_of(row: Row, where: str) -> Row:
        made = make(row, where)
        if made is None:
            raise DataError(f"{where}: {config.make} leaves this row out", "give rows of which it makes a text")
        return {**row, config.messages: made["messages"]} if is_chat else made

    def write(given: Sequence[Named]) -> list[Parts]:
        made = [(where, made_of(row, where)) for where, row in given]
        return chat(made) if chat else [_plain(row["text"]) for _, row in made]

    return Shape(columns, optional, write, framed=is_framed(config, {}), is_chat=is_chat)


def _own_columns(config: FormatConfig, rows: RowFormat) -> tuple[list[str], list[str]]:
    """Return the one column of a bare text, where the recipe names it, and all others, which the function may read."""
    named = {"chat": [config.messages], "instruction": [config.instruction]}.get(
        config.task, rows.text or [config.text]
    )
    columns = named if len(named) == 1 and named[0] in rows.columns else []
    return columns, [name for name in rows.columns if name not in columns]


def _chat_parts(config: FormatConfig, rows: RowFormat, folder: Path) -> Writer:
    names, write = chat_columns(config, rows.columns), prompt_writer(config, folder)

    def parts(given: Sequence[Named]) -> list[Parts]:
        read = [(conversation_of(row, names, where), where) for where, row in given]
        return write([(each._replace(messages=_asked(each.messages, where)), where) for each, where in read])

    return parts


def _chat_columns(config: FormatConfig, rows: RowFormat) -> tuple[list[str], list[str]]:
    return [config.messages], _around(config, rows)


def _around(config: FormatConfig, rows: RowFormat) -> list[str]:
    """Return the columns beside the messages that a chat template receives."""
    return [name for name in chat_columns(config, rows.columns)[1:] if name]


def _asked(messages: list[Row], where: str) -> list[Row]:
    """Return the messages without the assistant's at the end."""
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise DataError(f"{where}: the conversation has no turn to answer", "end it with a user's turn")
    return messages


def _plain(text: str) -> Parts:
    return [{"text": text, "train": False}]
