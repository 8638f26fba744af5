"""What the code of transformers' classes says, read without importing transformers, which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOTS = ("PreTrainedConfig", "PreTrainedModel")
"""The bases of all, in large files: `class_code` gives them as empty classes."""
UNKNOWN = object()
"""The value of an attribute that is computed."""


class ClassCode(NamedTuple):
    """A class and its bases, nearest first; none for a class that is not found."""

    nodes: tuple[ast.ClassDef, ...]

    @property
    def words(self) -> set[str]:
        """The names and texts in the code: those of all fields, and others."""
        return {word for node in self.nodes for part in ast.walk(node) for word in words_in(part)}

    def derives_from(self, base: str) -> bool:
        """Return whether a base with that name is found: then no base between is missing."""
        return any(node.name == base for node in self.nodes)

    @property
    def fields(self) -> set[str]:
        """The fields that the classes declare with a type."""
        parts = (part for node in self.nodes for part in node.body if isinstance(part, ast.AnnAssign))
        return {ast.unparse(part.target) for part in parts}

    @property
    def other_names(self) -> dict[str, str]:
        """{name: the field that the class has in its place}, such as `n_positions` of GPT-2."""
        tables = [_value(node, "attribute_map") for node in self.nodes]
        return {key: field for table in reversed(tables) if isinstance(table, Mapping) for key, field in table.items()}

    def value(self, name: str) -> Any:
        """Return the value of a class attribute or the default of a field, None without one, or UNKNOWN."""
        values = (_value(node, name) for node in self.nodes)
        return next((value for value in values if value is not None), None)

    def of(self, fields: Mapping[str, Any], name: str) -> Any:
        """Return the value of a field: that in `fields`, else its default, None without one, or UNKNOWN."""
        own = self.other_names.get(name, name)
        return next((fields[key] for key in (own, name) if key in fields), self.value(own))

    def words_of(self, method: str) -> set[str]:
        """Return the names and texts in the code of a method of the class or its bases."""
        bodies = [part for node in self.nodes for part in node.body if getattr(part, "name", "") == method]
        return {word for body in bodies for part in ast.walk(body) for word in words_in(part)}


def class_code(file: Path, name: str) -> ClassCode:
    """Return the code of a class that `file` defines or imports from a neighbour."""
    return ClassCode(tuple(_lineage(file, name)))


def _lineage(file: Path, name: str) -> Iterator[ast.ClassDef]:
    classes, imported = _module(file)
    if name in ROOTS:
        yield ast.ClassDef(name=name, bases=[], keywords=[], body=[], decorator_list=[])
    elif name in classes:
        yield classes[name]
        for base in classes[name].bases:
            yield from _lineage(file, ast.unparse(base).partition("[")[0])
    elif name in imported:
        yield from _lineage(imported[name], name)


@cache
def _module(file: Path) -> tuple[dict[str, ast.ClassDef], dict[str, Path]]:
    """Return ({class: its code}, {imported name: the file that it comes from})."""
    if not file.is_file():
        return {}, {}
    body = ast.parse(file.read_bytes()).body
    imported = {
        alias.asname or alias.name: file.parents[node.level - 1].joinpath(*(node.module or "__init__").split("."))
        for node in body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    return (
        {node.name: node for node in body if isinstance(node, ast.ClassDef)},
        {name: path.with_name(f"{path.name}.py") for name, path in imported.items()},
    )


def words_in(part: ast.AST) -> Iterator[str]:
    """Yield the identifiers and the string constant of one syntax node, without its children."""
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        yield part.value
    yield from (word for name in ("id", "attr", "name", "arg") if isinstance(word := getattr(part, name, None), str))


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for part in node.body:
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
        )
        yield from ((ast.unparse(target), part.value) for target in targets)  # type: ignore[attr-defined]


def _value(node: ast.ClassDef, name: str) -> Any:
    """Return what the class itself gives the name, None for nothing, or UNKNOWN."""
    given = next((value for key, value in _assigned(node) if key == name), None)
    try:
        return None if given is None else ast.literal_eval(given)
    except ValueError:
        return UNKNOWN
