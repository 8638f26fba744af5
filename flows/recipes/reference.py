"""Descriptions of all settings, for `trnflow settings`, docs/settings.md and the JSON schema."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trnflow.flows.recipes.schema import ANY_NAME, allowed, config_below, config_in, takes_null
from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import NOT_KEYED

UNKEYED = (
    "name", "description", "promote", "checks", "hardware", "store", "launch", "run", "task_runner", "tracking", "own", "sweep",
)  # fmt: skip
"""Sections and settings that are in no stage's key; what `own` names is, by content."""
_SLIPS = re.compile(r",? (at most|to) (1e\+30|1,000,000,000)")


class Setting(NamedTuple):
    """One setting or section of a recipe.

    Attributes:
        meaning: The docstring under its field.
        takes: The allowed values in words; "" for a section.
        default: As YAML, or `required`; "" where `meaning` names it.
        group: The heading under which the setting stands.
    """

    name: str
    meaning: str
    takes: str
    default: str
    keyed: bool
    group: str


def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """Return {field: its docstring on one line} of a config class, inherited fields included."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, BaseModel) and base.__module__.startswith("trnflow."):
            # parsed when needed: pydantic's `use_attribute_docstrings` would add 30 ms to every command
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
            for field, text in pairwise(body):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(text, ast.Expr)
                    and isinstance(field.target, ast.Name)
                ):
                    texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts


def settings_of(kind: type[BaseModel], above: str = "", without: frozenset[str] = frozenset()) -> Iterator[Setting]:
    """Yield a `Setting` for each section and setting of a config class, in order.

    above: the prefix of the names, such as `train.`; without: fields to leave out.
    """
    texts = meanings(kind)
    for name, field in kind.model_fields.items():
        if name in without:
            continue
        keyed = NOT_KEYED not in field.metadata and f"{above}{name}".split(".")[0] not in UNKEYED
        meaning = texts.get(name, "")
        default = _default(field, meaning)
        yield Setting(f"{above}{name}", meaning, _takes(field), default, keyed, _group(kind, name))
        entry, inner = config_below(field.annotation)
        if inner is not None:
            place = f"{above}{name}.{entry}." if entry else f"{above}{name}."
            yield from settings_of(inner, place, frozenset(kind.model_fields if entry == ANY_NAME else ()))


def groups_of(kind: type[BaseModel]) -> list[tuple[str, set[str]]]:
    """Return (heading, fields) of each group of settings: of each base class with its docstring's first sentence."""
    groups = [base for base in reversed(kind.__bases__) if issubclass(base, BaseModel)]
    if len(groups) == 1:
        return [("", set(kind.model_fields))]
    return [(inspect.cleandoc(base.__doc__ or "").split(".")[0], set(base.model_fields)) for base in groups]


def markdown(kind: type[BaseModel]) -> str:
    """Return the text of docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Every setting of a recipe. `trnflow settings NAME` prints one of them; `trnflow settings --markdown` writes this page.",
        "In a recipe write `section: {name: value}`, on the command line `section.name=value`.",
        "Settings marked * are in no stage's key: another value runs a stage again only if it names other data, another model or "
        "other code.",
    ]
    texts = meanings(kind)
    plain = [name for name, field in kind.model_fields.items() if config_in(field.annotation) is None]
    lines += ["", "## The recipe itself", "", *_table(s for s in settings_of(kind) if s.name.split(".")[0] in plain)]
    for name, field in kind.model_fields.items():
        section = config_in(field.annotation)
        if section is not None:
            lines += ["", f"## {name}", "", texts.get(name, "")]
            for heading, fields in groups_of(section):
                lines += ["", f"### {heading}"] if heading else []
                settings = settings_of(section, f"{name}.")
                lines += ["", *_table(setting for setting in settings if setting.name.split(".")[1] in fields)]
    return "\n".join([*lines, ""])


def json_schema(kind: type[BaseModel]) -> Meta:
    """Return the JSON schema of recipe files."""
    schema = kind.model_json_schema()
    for config in (kind, *_configs_below(kind)):
        place = schema if config is kind else schema["$defs"].get(config.__name__, {})
        place["description"] = inspect.cleandoc(config.__doc__ or "")
        for name, text in meanings(config).items():
            place.get("properties", {}).get(name, {})["description"] = text
    names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    schema["properties"]["extends"] = names | {"description": "The recipes whose settings this one takes over."}
    _allow_null(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A trnflow recipe"}


def _configs_below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for field in kind.model_fields.values():
        inner = config_below(field.annotation)[1]
        if inner is not None:
            yield inner
            yield from _configs_below(inner)


def _allow_null(schema: Any) -> None:
    """Require nothing, and allow null for each property and entry of a mapping, at any depth, in place."""
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _allow_null(inner)
    if not isinstance(schema, dict):
        return
    # a file may extend others
    schema.pop("required", None)
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, inner in properties.items():
            properties[name] = _or_null(inner)
    if isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = _or_null(schema["additionalProperties"])


def _or_null(schema: Meta) -> Meta:
    """Return a JSON schema that also allows null, except for a section."""
    if "const" in schema:
        schema = {name: value for name, value in schema.items() if name != "const"} | {"enum": [schema["const"]]}
    if "enum" in schema:
        schema = schema | {"enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    if "anyOf" in schema and {"type": "null"} not in schema["anyOf"]:
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema


def _group(kind: type[BaseModel], name: str) -> str:
    """Return the first sentence of the docstring of the base class that declares the field, or ""."""
    base = next(base for base in kind.__mro__ if name in inspect.get_annotations(base))
    return "" if base is kind else inspect.cleandoc(base.__doc__ or "").split(". ")[0].rstrip(".")


def _default(field: FieldInfo, meaning: str) -> str:
    """Return a field's default as YAML, or `required`; "" for a section, and where the meaning names it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "" if config_in(field.annotation) is not None or "Default: " in meaning else "required"
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True).removesuffix("...\n").strip()


def _takes(field: FieldInfo) -> str:
    """Return the allowed values in words, without bounds that only find typing errors."""
    if config_in(field.annotation) is not None and not takes_null(field.annotation):
        return ""
    return _SLIPS.sub("", allowed(field.annotation, tuple(field.metadata)))


def _table(settings: Iterator[Setting]) -> list[str]:
    group = ""
    rows = ["| setting | meaning | takes | default |", "|---|---|---|---|"]
    for setting in settings:
        if setting.group and setting.group != group:
            group = setting.group
            rows.append(f"| **{group}** | | | |")
        name, default = (
            f"`{setting.name}`{'' if setting.keyed else ' *'}",
            f"`{setting.default}`" if setting.default else "",
        )
        rows.append(f"| {name} | {setting.meaning} | {setting.takes} | {default} |")
    return rows
