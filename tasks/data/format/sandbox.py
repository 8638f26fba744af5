"""Jinja environments that render templates safely: no internals of Python, no changes, no random numbers.

Imported inside functions: it imports jinja2.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateRuntimeError, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trnflow.tasks.system.json_numbers import dumps

STEPS = 250_000
"""Loop passes and calls that a rendering may take."""
OUTPUT = 1 << 24
"""Characters that a rendering may write."""

MARKS = BEGIN, END = ("\U000ffffc", "\U000ffffd")
"""Characters around the text of a `{% generation %}` block, for `marked`."""

_STEPS, _MARKED = "steps left", "with marks"
"""Names of an internal filter and an internal variable. They contain a blank, so no template can use them."""


class Limited(ImmutableSandboxedEnvironment):
    """A sandboxed environment that raises beyond STEPS calls and loop passes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals.pop("lipsum")  # draws random numbers, as the filter `random` does
        self.filters.pop("random")
        self.policies["json.dumps_function"] = dumps  # of the filter `tojson`
        # fixed numbers, so that a row fails on every machine or none
        self.filters[_STEPS] = _take_step

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # keywords are the template's
        """Count and make a call of a template."""
        _take_step(__context)
        return super().call(__context, __obj, *args, **kwargs)

    def counted(self, tree: nodes.Template) -> nodes.Template:
        """Insert a filter that counts each loop pass into a parsed template, in place."""
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
    """The tag `{% generation %}` around the text to train on."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Turn the tag into a call of `mark` with its contents."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark", [nodes.ContextReference()]), [], [], body).set_lineno(line)

    def mark(self, context: Context, caller: Callable[[], str]) -> str:
        """Return the text inside the tag, with `marked` between MARKS."""
        text = caller()
        return f"{BEGIN}{text}{END}" if context.parent[_MARKED] else text


def chat_environment(date: str) -> Limited:
    """Create transformers' environment for chat templates."""
    environment = Limited(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    # a fixed date: prompts do not change from day to day
    environment.globals["strftime_now"] = datetime.datetime.fromisoformat(date).strftime
    return environment


def render(template: Any, variables: dict[str, Any], *, marked: bool = False) -> str:
    """Render a template; `marked` puts MARKS around `{% generation %}` blocks. Raises TemplateRuntimeError."""
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
    """Write JSON, unlike Jinja's `tojson` without escaping HTML."""
    return dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
