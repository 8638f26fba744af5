"""Jinja environments that render the templates of recipes and tokenizers safely.

A template can't reach Python's internals, change its variables or draw random numbers. One rendering may make at most
STEPS calls and loop passes and write at most OUTPUT characters. Both limits are fixed, so that a row that fails on one
machine fails on every machine; `trnflow.tasks.data.format.time_limit` also limits the time. Import this module inside
functions: it imports jinja2.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateRuntimeError, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

STEPS = 250_000
"""Loop passes and calls that a rendering may take."""
OUTPUT = 1 << 24
"""Characters that a rendering may write."""

MARKS = BEGIN, END = ("\U000ffffc", "\U000ffffd")
"""Characters that are put around the text of a `{% generation %}` block where `render` is called with `marked`."""

_STEPS, _MARKED = "steps left", "with marks"
"""Names of an internal filter and an internal variable. They contain a blank, so no template can use them."""


class Limited(ImmutableSandboxedEnvironment):
    """A sandboxed Jinja environment, whose templates can't reach Python's internals, that counts the calls and loop
    passes of each rendering. More than 250,000 of them end the rendering with an error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals.pop("lipsum")  # draws random numbers, as the filter `random` does
        self.filters.pop("random")
        self.filters[_STEPS] = _take_step

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # keywords are the template's
        """Make a call that the template asks for, after counting it against the limit of calls and loop passes of one
        rendering. Jinja calls this method for each call in a template."""
        _take_step(__context)
        return super().call(__context, __obj, *args, **kwargs)

    def counted(self, tree: nodes.Template) -> nodes.Template:
        """Insert into a parsed template's tree, in place, a filter that counts each loop pass against the limit of
        calls and loop passes of one rendering. Returns the same tree."""
        for loop in tree.find_all(nodes.For):
            step = nodes.Filter(nodes.Const(None), _STEPS, [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(step).set_lineno(loop.lineno))
        return tree


@pass_context
def _take_step(context: Context, _: None = None) -> None:
    left = context.parent[_STEPS]
    left[0] -= 1
    if left[0] < 0:
        raise TemplateRuntimeError(f"it takes more than {STEPS} steps (loop passes and calls)")


class Generation(Extension):
    """A Jinja extension for the tag `{% generation %}` ... `{% endgeneration %}`, with which chat templates enclose the
    assistant's text, the text to train on. As in transformers, names that are set inside the tag are not visible
    outside it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Turn the tag `{% generation %}` into a call of the method `mark` with the tag's contents. Jinja calls this
        method where a template has the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark", [nodes.ContextReference()]), [], [], body).set_lineno(line)

    def mark(self, context: Context, caller: Callable[[], str]) -> str:
        """Return the text inside the tag `{% generation %}`. If `render` was called with `marked`, the text stands
        between the two private-use characters MARKS, which stay around the text even when the template passes it
        through macros and variables."""
        text = caller()
        return f"{BEGIN}{text}{END}" if context.parent[_MARKED] else text


def chat_environment(date: str) -> Limited:
    """Create the Jinja environment that transformers gives to chat templates, with one difference: `strftime_now` formats
    `date` (YYYY-MM-DD) instead of the day of the run, so that prompts do not change from day to day."""
    environment = Limited(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = datetime.datetime.fromisoformat(date).strftime
    return environment


def render(template: Any, variables: dict[str, Any], *, marked: bool = False) -> str:
    """Render a template of a `Limited` environment and return the text. marked: put the private-use characters MARKS
    around the text of `{% generation %}` blocks, so that the caller can find this text.

    Raises TemplateRuntimeError when the rendering makes too many calls and loop passes (STEPS) or writes too many
    characters (OUTPUT). Exceptions of the template pass through."""
    pieces, size = [], 0
    for piece in template.generate({**variables, _STEPS: [STEPS], _MARKED: marked}):
        size += len(piece)
        if size > OUTPUT:
            raise TemplateRuntimeError(f"it writes more than {OUTPUT} characters")
        pieces.append(piece)
    return "".join(pieces)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write a value as JSON: a filter `tojson` that, unlike Jinja's own, does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
