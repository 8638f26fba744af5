"""The columns that examples are made of, and those that formats define to change what is learnt: a row with one of these that
nothing reads is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import ChatColumns, Row
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.registry import FORMATS

if TYPE_CHECKING:
    from trnflow.tasks.data.format.chat import RowExamples

ARGUMENTS = "chat_template_kwargs"
"""The column with a row's own variables for the chat template."""
SYSTEM, HISTORY, TOOLS = "system", "history", "tools"
ALIASES = {SYSTEM: ("system_prompt",), HISTORY: (), TOOLS: ("functions", "available_tools")}
"""{setting: other names of its column}: of OpenOrca and mistral-finetune, of OpenAI and mistral-finetune."""

WEIGHTS = ("weight", "loss_weight", "sample_weight")
MEDIA = ("images", "image", "videos", "video", "audios", "audio")
MARKS = ("mask", "loss_mask", "only_last")
JUDGED = "kto_tag"
LEFT_OUT = "leave such rows out, or the column: data.columns keeps those that it names"


def named_column(config: FormatConfig, setting: str, columns: Collection[str]) -> str | None:
    """Return the column of a setting: another program's name of it where the rows lack the default one."""
    name: str | None = getattr(config, setting)
    if name != FormatConfig.model_fields[setting].default or name in columns:
        return name
    return next((other for other in ALIASES[setting] if other in columns), name)


def context_column(config: FormatConfig, columns: Collection[str]) -> str | None:
    """Return the column of an instruction's context: `input`, as Alpaca has it, where its style has no `context`."""
    alpaca = config.style == "alpaca" and config.context == "context"
    return "input" if alpaca and "context" not in columns and "input" in columns else config.context


def chat_columns(config: FormatConfig, columns: Collection[str]) -> ChatColumns:
    """Return the columns that a conversation is read from. columns: of the rows."""
    tools, system = (named_column(config, setting, columns) for setting in (TOOLS, SYSTEM))
    # a function of the user's makes all messages
    return ChatColumns(config.messages, tools, config.documents, ARGUMENTS, None if config.make else system)


def refusing(
    make: Callable[[Row, str], RowExamples], config: FormatConfig, unread: Iterable[str]
) -> Callable[[Row, str], RowExamples]:
    """Return a maker that refuses rows with a column that a format defines to change what is learnt, and nothing reads.

    unread: The columns that `make` does not read.
    """
    fixes = fixes_of(config, unread)

    def refuse_or_make(row: Row, where: str) -> RowExamples:
        for name, fix in fixes.items():
            if says_something(name, row.get(name)):
                raise DataError(f"{where}: the column {name} is {row[name]!r:.60}, which nothing here reads", fix)
        return make(row, where)

    return refuse_or_make if fixes else make


def fixes_of(config: FormatConfig, unread: Iterable[str]) -> dict[str, str]:
    """Return {column that a format defines to change what is learnt, of those that nothing reads: what to do about it}."""
    if FORMATS[config.task].per_row or config.task == "text":
        return {}
    return {name: fix for name in unread if (fix := _fix(config, name))}


def says_something(name: str, value: Any) -> bool:
    """Return whether a value is more than nothing; of a weight also other than 1, of a mark also other than false."""
    text = "" if value is None else str(value).strip()
    nothing = {"", "[]", "{}", "null"}
    nothing |= {"1", "1.0", "True"} if name in WEIGHTS else {"False", "false", "0"} if name in MARKS else set()
    return text not in nothing


def _fix(config: FormatConfig, name: str) -> str | None:
    """Return what to do about a column that nothing reads; None for one that no format defines."""
    if name in WEIGHTS:
        return f"rows have no weights here, and none is rounded: {LEFT_OUT}"
    if name in MEDIA:
        return f"the model reads text alone: {LEFT_OUT}"
    if name in MARKS:
        return f"say it in the messages (`train`: true or false), or set format.turns=last: {LEFT_OUT}"
    if name == JUDGED:
        return f"set format.task=unpaired_preference and data.columns.label={JUDGED}"
    setting = next((setting for setting in ALIASES if name in (setting, *ALIASES[setting])), None)
    if setting is None or getattr(config, setting) is None:
        return None
    return f"{_writer(config, setting)}; format.{setting}=null leaves the column alone"


def _writer(config: FormatConfig, setting: str) -> str:
    """Return what writes a system prompt, a history or tools."""
    if config.task != "instruction":
        return "give messages, which the chat template writes with it"
    if setting == TOOLS:
        return "give messages, and set format.task=chat"
    return "set format.style=alpaca, which writes it, or a format.prompt_template that does"


def taught_columns(config: FormatConfig, columns: Collection[str]) -> Iterator[str]:
    """Yield the columns of a system prompt and of earlier rounds that an instruction's style writes."""
    if config.style == "alpaca" and not config.prompt_template:
        yield from filter(None, (named_column(config, setting, columns) for setting in (SYSTEM, HISTORY)))
