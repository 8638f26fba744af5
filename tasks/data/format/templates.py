"""Jinja templates from recipes and tokenizers, parsed once and rendered for many rows, also by threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

from trnflow.tasks.errors import ConfigError, DataError, TrnflowError

Row = dict[str, Any]
Limit = Callable[[str], AbstractContextManager[None]]
"""Takes a row's name and returns the context in which it is rendered, such as a time limit."""

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables that `template_arguments` can't set, because they come from the rows."""


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
    Attributes: `generation`, whether it has such blocks; `names`, the variables that it uses.
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

    def render(self, given: Row, where: str, *, add_generation_prompt: bool = False, marked: bool = False) -> str:
        """Return a conversation's text; the template's own exceptions pass through (see `rendering`).

        given: Its variables, such as `messages`. marked: Put `sandbox.MARKS` around `{% generation %}` blocks.
        """
        from trnflow.tasks.data.format.sandbox import render

        variables = {**self._variables, **given, "add_generation_prompt": add_generation_prompt}
        with self._limit(where):
            return render(self._template, variables, marked=marked)


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
