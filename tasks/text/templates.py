"""Jinja templates of recipes and tokenizers. They can neither reach Python's internals nor change what they are given."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tasks.errors import ConfigError

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

Row = dict[str, Any]


def row_template(setting: str, source: str) -> Callable[[Row], str]:
    """A template over a row's columns; an unknown column is an error. ConfigError names the setting."""
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    template = _parsed(setting, source, environment)

    def render(row: Row) -> str:
        try:
            return str(template.render(row))
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"{setting}: {error}", f"the row's columns are {', '.join(row)}") from error

    return render


def chat_renderer(setting: str, source: str, special: dict[str, str]) -> Callable[[list[Row], bool], str]:
    """A chat template -> render(messages, add_generation_prompt). special: role -> text of the tokenizer's special tokens.

    The same names as in transformers' `apply_chat_template`, but for `strftime_now`: a prompt does not depend on the day.
    Raises jinja2's TemplateError for messages that the template refuses."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    template = _parsed(setting, source, environment)

    def render(messages: list[Row], add_generation_prompt: bool) -> str:
        return str(template.render(messages=messages, add_generation_prompt=add_generation_prompt, **special))

    return render


def _parsed(setting: str, source: str, environment: ImmutableSandboxedEnvironment) -> Any:
    from jinja2 import TemplateError

    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ConfigError(f"{setting}: {error}", "repair the template") from error


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Jinja's own escapes HTML."""
    return json.dumps(value, ensure_ascii=options.get("ensure_ascii", False), indent=indent)


def _generation_tag() -> Any:
    """`{% generation %}` marks what the assistant says; it is found otherwise here, so the tag only has to parse."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation
