"""Jinja templates from recipes and tokenizers, parsed once and rendered for many rows, also by threads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any

from trnflow.tasks.errors import ConfigError, DataError, TrnflowError

Row = dict[str, Any]
Limit = Callable[[str], AbstractContextManager[None]]
"""Takes a row's name and returns the context in which it is rendered, such as a time limit."""

IMPORTS = ["trnflow.tasks.data.format.sandbox"]
"""What a process that renders imports once for all calls."""

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables that `template_arguments` can't set, because they come from the rows."""

PROBE, CALLED = "qprobe", "qcalled"
"""A text and the name of a tool, in conversations that find out what a template takes."""
_ARGUMENTS: tuple[Row | str, ...] = ({"argument": PROBE}, f'{{"argument": "{PROBE}"}}')


def no_limit(where: str) -> AbstractContextManager[None]:
    """Return a context that limits nothing."""
    return nullcontext()


class _Template:
    """A parsed template. setting: for errors. Raises ConfigError for a syntax error."""

    def __init__(self, setting: str, source: str, environment: Any, limit: Limit) -> None:
        self._setting, self._environment, self._limit = setting, environment, limit
        with _template_errors(setting):
            self._tree = environment.counted(environment.parse(source))

    @cached_property
    def _template(self) -> Any:
        """The compiled template. Raises ConfigError for an unknown filter or test."""
        # compiled late, under the time limit: compiling evaluates constant expressions
        with _template_errors(self._setting):
            return self._environment.from_string(self._tree)


class RowTemplate(_Template):
    """A template over a row's columns, such as `format.prompt_template`."""

    def __init__(self, setting: str, source: str, columns: list[str], limit: Limit = no_limit) -> None:
        from jinja2 import StrictUndefined, nodes

        from trnflow.tasks.data.format.sandbox import Limited

        super().__init__(setting, source, Limited(undefined=StrictUndefined, keep_trailing_newline=True), limit)
        self._columns = columns
        self._names = {node.name for node in self._tree.find_all(nodes.Name) if node.ctx == "load"}

    @property
    def reads(self) -> list[str]:
        """The columns that the template uses, in the row's order."""
        return [column for column in self._columns if column in self._names]

    def render(self, row: Row, where: str) -> str:
        """Return a row's text. Raises ConfigError for an unknown column or Python's internals, DataError for a bad row."""
        from jinja2.exceptions import SecurityError, UndefinedError

        from trnflow.tasks.data.format.sandbox import render

        with rendering(where, self._setting, "repair the row or the template"):
            try:
                with self._limit(where):
                    return render(self._template, row)
            except (SecurityError, UndefinedError) as error:
                if isinstance(error, UndefinedError) and self._names <= {*self._columns, *self._environment.globals}:
                    raise
                fix = f"the row's columns are {', '.join(self._columns)}"
                raise ConfigError(f"{self._setting}: {error}", fix) from error


class ChatTemplate(_Template):
    """A chat template with transformers' variables.

    Args:
        special: {role such as `eos_token`: text}.
        date: YYYY-MM-DD.
    Attributes: `generation`, whether it has such blocks; `names`, the variables that it uses; `texts`, its constants.
    What it takes is found out by rendering a conversation of `PROBE`s.
    """

    def __init__(
        self, setting: str, source: str, special: dict[str, str], *, date: str, arguments: Row, limit: Limit = no_limit
    ) -> None:
        from jinja2 import nodes

        from trnflow.tasks.data.format.sandbox import chat_environment

        super().__init__(setting, source, chat_environment(date), limit)
        self._variables = {**special, **arguments}
        self.generation = any(True for _ in self._tree.find_all(nodes.ExtensionAttribute))
        self.names = frozenset(node.name for node in self._tree.find_all(nodes.Name))
        self.texts = frozenset(node.value for node in self._tree.find_all(nodes.Const) if isinstance(node.value, str))

    def render(self, given: Row, where: str, *, add_generation_prompt: bool = False, marked: bool = False) -> str:
        """Return a conversation's text; the template's own exceptions pass through (see `rendering`).

        given: Its variables, such as `messages`. marked: Put `sandbox.MARKS` around `{% generation %}` blocks.
        """
        from trnflow.tasks.data.format.sandbox import render

        variables = {**self._variables, **given, "add_generation_prompt": add_generation_prompt}
        with self._limit(where):
            return render(self._template, variables, marked=marked)

    @cached_property
    def goes_through_parts(self) -> bool:
        """Whether it writes the texts of a content that is a list of parts, of the user's and of the assistant's turns."""
        parts = [{"type": "text", "text": PROBE}]
        text = self._probe([{"role": role, "content": parts} for role in ("user", "assistant")])
        return text.count(PROBE) == 2 and not re.search("""['"]type['"]""", text)

    @cached_property
    def writes_calls(self) -> bool:
        """Whether it writes `tool_calls`."""
        return any(CALLED in self._probe(_calling(arguments)) for arguments in _ARGUMENTS)

    @cached_property
    def takes_text_arguments(self) -> bool:
        """Whether it takes the arguments of a call as JSON text alone, as DeepSeek-V3's; others take an object."""
        as_object, as_text = (self._probe(_calling(arguments)) for arguments in _ARGUMENTS)
        return PROBE in as_text and (PROBE not in as_object or "'argument'" in as_object)

    @cached_property
    def opening(self) -> str:
        """What it writes by itself before the first turn of a user, such as a system prompt."""
        return self._probe([{"role": "user", "content": PROBE}]).partition(PROBE)[0]

    @cached_property
    def answer_opening(self) -> str:
        """What it writes by itself between the prompt of an answer and the answer, such as empty thinking."""
        asked = [{"role": "user", "content": "?"}]
        prompt = self._probe(asked, add_generation_prompt=True)
        text = self._probe([*asked, {"role": "assistant", "content": PROBE}])
        return text[len(prompt) :].partition(PROBE)[0] if text.startswith(prompt) else ""

    def _probe(self, messages: list[Row], *, add_generation_prompt: bool = False) -> str:
        """Return what the template writes of messages, "" if it refuses them."""
        given = {"messages": messages, "tools": None, "documents": None}
        with suppress(Exception):  # whatever a template raises
            return self.render(given, "a conversation to try it", add_generation_prompt=add_generation_prompt)
        return ""


def _calling(arguments: Row | str) -> list[Row]:
    """Return a conversation with a call of a tool."""
    call = {"type": "function", "id": "123456789", "function": {"name": CALLED, "arguments": arguments}}
    return [{"role": "user", "content": PROBE[::-1]}, {"role": "assistant", "content": "", "tool_calls": [call]}]


@contextmanager
def rendering(where: str, what: str, fix: str) -> Iterator[None]:
    """Turn a rendering's exception into a DataError that names the row, a MemoryError into a ConfigError."""
    try:
        yield
    except TrnflowError:
        raise
    except MemoryError as error:
        raise ConfigError(f"{where}: {what}: the template takes too much memory", "repair the template") from error
    except Exception as error:
        raise DataError(f"{where}: {what}: {error}", fix) from error


@contextmanager
def _template_errors(setting: str) -> Iterator[None]:
    from jinja2 import TemplateError

    try:
        yield
    except (TemplateError, RecursionError) as error:
        raise ConfigError(f"{setting}: {error}", "repair the template") from error
