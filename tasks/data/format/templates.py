"""Jinja templates from recipes and tokenizers, parsed once and rendered for many rows. Threads may share a template."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

from trnflow.tasks.errors import ConfigError, DataError, TrnflowError

Row = dict[str, Any]
Limit = Callable[[str], AbstractContextManager[None]]
"""A function that takes a row's name and returns the context in which this row's template is rendered, such as one that
ends the process after a time limit (`trnflow.tasks.data.format.time_limit`)."""

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables of a chat template that `template_arguments` can't set, because they come from the rows."""


def no_limit(where: str) -> AbstractContextManager[None]:
    """Return a context that limits nothing, for rendering templates without a time limit. where: the row's name, not
    used."""
    return nullcontext()


class RowTemplate:
    """A Jinja template over the columns of a row, such as `format.prompt_template`.

    Args:
        setting: the dotted setting that holds the template, for errors.
        source: the template's text.
        columns: the columns that the rows have.
        limit: a function that takes a row's name and returns the context, such as a time limit, in which the row is
            rendered.

    Raises ConfigError for a syntax error.
    """

    def __init__(self, setting: str, source: str, columns: list[str], limit: Limit = no_limit) -> None:
        from jinja2 import StrictUndefined, nodes

        from trnflow.tasks.data.format.sandbox import Limited

        self._setting, self._columns, self._limit = setting, columns, limit
        self._environment = Limited(undefined=StrictUndefined, keep_trailing_newline=True)
        self._tree = _parsed(setting, source, self._environment)
        self._names = {node.name for node in self._tree.find_all(nodes.Name) if node.ctx == "load"}

    @property
    def reads(self) -> list[str]:
        """The names of the columns that the template uses, in the order of the row's columns."""
        return [column for column in self._columns if column in self._names]

    def render(self, row: Row, where: str) -> str:
        """Return the text that the template makes of a row. where: names the row in errors.

        Raises ConfigError for an unknown column or a template that uses Python's internals, DataError for a row that
        can't be rendered."""
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

    @cached_property
    def _template(self) -> Any:
        return _compiled(self._setting, self._environment, self._tree)


class ChatTemplate:
    """A chat template, rendered with the same variables as transformers' `apply_chat_template`.

    setting: the dotted setting that the template comes from, for errors; source: its Jinja text; special: {role, such
    as `eos_token`: text} of the tokenizer's special tokens; date: today's date for the template, YYYY-MM-DD; arguments:
    `format.template_arguments`; limit: a function that takes a row's name and returns the context, such as a time
    limit, in which the row is rendered. Attributes: `generation`, whether the template has `{% generation %}` blocks,
    which enclose the text to train on; `names`, the variables that the template uses. Raises ConfigError for a syntax
    error."""

    def __init__(
        self, setting: str, source: str, special: dict[str, str], *, date: str, arguments: Row, limit: Limit = no_limit
    ) -> None:
        from jinja2 import nodes

        from trnflow.tasks.data.format.sandbox import chat_environment

        self._setting, self._limit = setting, limit
        self._variables = {**special, **arguments}
        self._environment = chat_environment(date)
        self._tree = _parsed(setting, source, self._environment)
        self.generation = any(True for _ in self._tree.find_all(nodes.ExtensionAttribute))
        self.names = frozenset(node.name for node in self._tree.find_all(nodes.Name))

    def render(self, given: Row, where: str, *, add_generation_prompt: bool = False, marked: bool = False) -> str:
        """Return the text that the chat template makes of one conversation.

        Args:
            given: the template's variables, such as `messages`, `tools` and `documents`.
            where: names the row in errors.
            add_generation_prompt: end the text with the beginning of an assistant's answer.
            marked: put the private-use characters `sandbox.MARKS` around the text of `{% generation %}` blocks.

        Raises the template's own exceptions; use `rendering` to turn them into errors that name the row.
        """
        from trnflow.tasks.data.format.sandbox import render

        variables = {**self._variables, **given, "add_generation_prompt": add_generation_prompt}
        with self._limit(where):
            return render(self._template, variables, marked=marked)

    @cached_property
    def _template(self) -> Any:
        return _compiled(self._setting, self._environment, self._tree)


@contextmanager
def rendering(where: str, what: str, fix: str) -> Iterator[None]:
    """Context that turns an exception raised while a template is rendered into a DataError that names the row. A
    TrnflowError passes through unchanged; a MemoryError becomes a ConfigError.

    Args:
        where: the row's name.
        what: what went wrong, such as "the chat template refuses the messages".
        fix: what the user can do.
    """
    try:
        yield
    except TrnflowError:
        raise
    except MemoryError as error:
        raise ConfigError(f"{where}: {what}: the template takes too much memory", "repair the template") from error
    except Exception as error:
        raise DataError(f"{where}: {what}: {error}", fix) from error


def _parsed(setting: str, source: str, environment: Any) -> Any:
    """Return the parsed template. It is compiled later, under the time limit: compiling evaluates constant expressions,
    which may take very long."""
    from jinja2 import TemplateError

    try:
        return environment.counted(environment.parse(source))
    except (TemplateError, RecursionError) as error:
        raise ConfigError(f"{setting}: {error}", "repair the template") from error


def _compiled(setting: str, environment: Any, tree: Any) -> Any:
    """Compile a parsed template. Raises ConfigError for a filter or test that Jinja does not have."""
    from jinja2 import TemplateError

    try:
        return environment.from_string(tree)
    except (TemplateError, RecursionError) as error:
        raise ConfigError(f"{setting}: {error}", "repair the template") from error
