"""Find out from the config classes which settings exist, which values each takes and what null means.

A field of a config class is a section, one of `dict[...]` a table, any other a single value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from trnflow.tasks.system.redaction import scrub

Tree = dict[str, Any]
"""Settings as YAML nests them, before they are validated: free."""
# an error shows so many characters of a value
LONGEST = 60
ANY_NAME = "NAME"
"""Stands for a name that the user chooses, as in `data.mix.NAME.weight`."""
ANY_NUMBER = "N"
"""Stands for the place in a list of sections, as in `checks.N.limit`."""


def known_settings(root: type[BaseModel], path: Iterable[str]) -> list[str]:
    """Return the settings of the section at `path`; [] for a value or table."""
    kind = config_in(annotation_at(root, path))
    return list(kind.model_fields) if kind is not None else []


def annotation_at(root: Any, path: Iterable[str]) -> Any:
    """Return a setting's type annotation, such as `int | None`; None when there is no such setting."""
    for name in path:
        root = below(root, name)
    return root


def below(annotation: Any, name: str) -> Any:
    """Return the annotation of the entry `name` of a section, table or list; None if there can't be one."""
    if annotation is Any:
        return Any
    table = table_in(annotation)
    if table is not None:
        return get_args(table)[1]
    # a list's entry is named by its index
    if name.isdecimal():
        lists = [kind for kind in kinds_of(annotation) if get_origin(kind) in (tuple, list)]
        return get_args(lists[0])[0] if lists else None
    kind = config_in(annotation)
    field = kind.model_fields.get(name) if kind is not None else None
    if field is None:
        return None
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def table_in(annotation: Any) -> Any:
    """Return the `dict[...]` in an annotation such as `dict[str, int] | None`, or None."""
    return next((kind for kind in kinds_of(annotation) if get_origin(kind) is dict), None)


def config_in(annotation: Any) -> type[BaseModel] | None:
    """Return the config class in an annotation such as `TrainTokenizer | None`, or None; not that of a table."""
    kinds = (kind for kind in kinds_of(annotation) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def config_below(annotation: Any) -> tuple[str, type[BaseModel] | None]:
    """Return (name of an entry, config class) of a section, whose name is "", or of a table's or list's entries."""
    if (table := table_in(annotation)) is not None:
        return ANY_NAME, config_in(get_args(table)[1])
    lists = [kind for kind in kinds_of(annotation) if get_origin(kind) in (tuple, list)]
    return (ANY_NUMBER, config_in(get_args(lists[0])[0])) if lists else ("", config_in(annotation))


def kinds_of(annotation: Any) -> list[Any]:
    """Return the alternatives of an annotation: `int | str | None` gives [int, str, NoneType]; bounds are left out."""
    if get_origin(annotation) is Annotated:
        return kinds_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in kinds_of(part)]
    return [annotation]


def takes_null(annotation: Any) -> bool:
    """Return whether null is an allowed value."""
    return annotation is None or any(kind in (Any, NoneType) for kind in kinds_of(annotation))


def merge(into: Tree, other: Tree, annotation: Any) -> None:
    """Merge the settings `other` into `into`, in place; values of `other` win.

    Mappings are merged entry by entry; any other value, and `{}`, replaces. In a table, null removes the entry. annotation: the
    type of the setting whose value `into` is, which tells tables from sections.
    """
    table = annotation is Any or table_in(annotation) is not None
    for name, value in other.items():
        inner = below(annotation, name)
        if value is None and table and (name in into or not takes_null(inner)):
            into.pop(name, None)
        elif isinstance(value, dict) and value:
            inherited = into.get(name)
            into[name] = inherited if isinstance(inherited, dict) else {}
            merge(into[name], value, inner)
        else:
            into[name] = deepcopy(value)


def without_null(tree: Tree, annotation: Any) -> Tree:
    """Return a copy without settings that are null where null is no allowed value."""
    kept = {}
    for name, value in tree.items():
        inner = below(annotation, name)
        if isinstance(value, dict):
            kept[name] = without_null(value, inner)
        # such a null means the default
        elif value is not None or takes_null(inner):
            kept[name] = value
    return kept


def sections(root: type[BaseModel]) -> set[str]:
    """Return the names of a recipe's sections."""
    return {name for name, field in root.model_fields.items() if config_in(field.annotation) is not None}


def allowed(annotation: Any, bounds: tuple[Any, ...] = ()) -> str:
    """Return the allowed values in words, such as `a whole number from 1`. bounds: pydantic's, such as `Gt(0)`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return allowed(parts[0], (*bounds, *parts[1:]))
    if origin in (Union, UnionType):
        return " or ".join(allowed(part, bounds) for part in sorted(parts, key=lambda part: part is NoneType))
    if origin is Literal:
        return str(parts[0]) if len(parts) == 1 else f"one of {', '.join(map(str, parts))}"
    if origin is dict:
        return f"a mapping ({_names(parts[0])}: {allowed(parts[1])})"
    if origin in (tuple, list):
        return f"a list ([{allowed(parts[0])}, ...])"
    if annotation in (int, float):
        return _number(annotation, bounds)
    if config_in(annotation) is not None:
        names = list(annotation.model_fields)
        return f"settings below it ({', '.join([*names[:4], *(['...'] if len(names) > 4 else [])])})"
    return {bool: "true or false", str: "text", NoneType: "null"}.get(annotation, "any value")


def choices(annotation: Any) -> list[str]:
    """Return the values of a `Literal` in an annotation, as texts."""
    return [str(word) for kind in kinds_of(annotation) if get_origin(kind) is Literal for word in get_args(kind)]


def shown(value: Any) -> str:
    """Return a value for an error: one line, secrets hidden; a mapping or list is only named."""
    if isinstance(value, dict):
        return "a mapping" if value else "{}"
    if isinstance(value, list):
        return "a list" if value else "[]"
    if isinstance(value, float) and value.is_integer():
        return f"{value:g}"
    return cut(repr(value) if isinstance(value, str) else json.dumps(value))


def cut(text: str) -> str:
    """Return a text with secrets hidden, cut to LONGEST characters."""
    text = scrub(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _names(annotation: Any) -> str:
    words = choices(annotation)
    return " or ".join(words) if words else "name"


def _number(kind: type, bounds: tuple[Any, ...]) -> str:
    """Describe a number in words, such as `a number above 0, at most 1`."""
    limits = dict(_limits(bounds))
    if kind is int:
        low = limits.get("ge", limits.get("gt", -1) + 1 if "gt" in limits else None)
        high = limits.get("le")
        span = [] if low is None else [f"from {low:,}"]
        return " ".join(["a whole number", *span, *([] if high is None else [f"to {high:,}"])])
    words = {"ge": "from", "gt": "above", "le": "at most", "lt": "below"}
    limited = [f"{word} {limits[name]:,.15g}" for name, word in words.items() if name in limits]
    return f"a number {', '.join(limited)}" if limited else "a number"


def _limits(bounds: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for bound in bounds:
        yield from _limits(getattr(bound, "metadata", ()))
        for name in ("ge", "gt", "le", "lt"):
            if getattr(bound, name, None) is not None:
                yield name, getattr(bound, name)
