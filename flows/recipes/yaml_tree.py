"""Read YAML from untrusted files: limited size and depth, the types of JSON alone, the line of every entry.

Unlike in YAML 1.1, 5e-5 is a number and 2024-07-26 is text; 010, 1:30 and 1_0 are refused.
"""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

import yaml

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import ENVIRONMENT

OVERRIDE = "override "
"""Stands before an override's name, where an error would name file and line."""
Lines = dict[tuple[str, ...], int]
# PyYAML recurses in C: deeper nesting would end the process
DEPTH = 50
# values of a file, each alias replaced by its value
NODES = 100_000
BYTES = 1 << 20
# 64-bit signed
INTEGER = 2**63
# octal, sexagesimal, grouped: YAML 1.2 and JSON read these as text, or as another number
_OLD_NUMBER = re.compile(r"^[-+]?0[0-9_]|[_:]")
_MERGE, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null", "merge")}


def read_yaml(data: bytes, place: str) -> tuple[Any, Lines]:
    """Parse a YAML file, and return its value (None if empty) and {path: line number}.

    Raises:
        ConfigError: Not UTF-8 or valid YAML, larger than BYTES, more values than NODES, deeper than DEPTH, a name set
        twice, or a value that JSON does not have.
    """
    if len(data) > BYTES:
        raise ConfigError(f"{place} has more than {BYTES:,} bytes", "a recipe holds settings alone: check the path")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{place}:{line}: byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8"
        ) from error
    return _read(text, place)


def read_value(text: str, place: str) -> Any:
    """Parse the value of an override: `3` becomes a number. Raises ConfigError as `read_yaml` does."""
    if len(text) > BYTES:
        raise ConfigError(f"{place}: the value has more than {BYTES:,} characters", "write it into a recipe file")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{place}: the value is not UTF-8", "write it in UTF-8") from error
    try:
        return _read(text, place)[0]
    except ConfigError as error:
        if ENVIRONMENT not in place.split("."):
            raise
        raise ConfigError(f"{place}: its value can't be read as YAML", error.fix) from None  # it may be a secret


def _read(text: str, place: str) -> tuple[Any, Lines]:
    try:
        _check_depth(text, place)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, {}
            _measure(node, place, {})
            lines: Lines = {}
            _note_lines(node, (), place, lines)
            tree = loader.construct_document(node)
            _note_merged(tree, (), node.start_mark.line + 1, lines)
            return tree, lines
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(
            f"{_at(place, mark)}: not valid YAML: {problem}", "correct the line, or quote the value"
        ) from error


def _at(place: str, mark: Any) -> str:
    """Return `file:line`, or an override's name."""
    return f"{place}:{mark.line + 1}" if mark and not place.startswith(OVERRIDE) else place


def _check_depth(text: str, place: str) -> None:
    """Raise ConfigError for nesting deeper than DEPTH."""
    depth = 0
    # reading events needs no recursion
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH:
            _refuse_depth(_at(place, event.start_mark))


def _refuse_depth(where: str) -> NoReturn:
    raise ConfigError(f"{where}: mappings and lists are nested more than {DEPTH} deep", "nest them less")


def _measure(node: yaml.Node, place: str, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Return (number of values, depth) of a node, aliases counted as their values. Raises ConfigError."""
    where = _at(place, node.start_mark)
    if node.tag not in _TAGS:
        name = node.tag.removeprefix("tag:yaml.org,2002:")
        raise ConfigError(f"{where}: a recipe holds no value of the type {name}", "quote it if it is text")
    if id(node) in known:
        measured = known[id(node)]
        if measured is None:
            raise ConfigError(f"{where}: an alias (*name) is inside what it names", "write the value out")
        return measured
    known[id(node)] = None
    _name_by_text(node, where)
    size, depth = 1, 0
    for inner in _children(node):
        values, below = _measure(inner, place, known)
        size, depth = size + values, max(depth, below + 1)
        if size > NODES:
            raise ConfigError(f"{where}: aliases (*name) make more than {NODES:,} values of it", "write the values out")
        if depth > DEPTH:
            _refuse_depth(where)
    known[id(node)] = size, depth
    return size, depth


def _name_by_text(node: yaml.Node, where: str) -> None:
    """Let a mapping's names be read as text, as they are written: also `no`, `1` and `1.0`."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{where}: a name is a list or a mapping", "write `name: value`")
        if key.tag != _MERGE:
            key.tag = _TEXT


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _note_lines(node: yaml.Node, above: tuple[str, ...], place: str, lines: Lines) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        where = (*above, str(key.value))
        if where in seen:
            raise ConfigError(f"{_at(place, key.start_mark)}: {'.'.join(where)} is set twice", "keep one of them")
        seen.add(where)
        lines[where] = key.start_mark.line + 1
        _note_lines(value, where, place, lines)


def _note_merged(tree: Any, above: tuple[str, ...], line: int, lines: Lines) -> None:
    """Give entries that come from a merge (`<<`) the line of the mapping they are in."""
    for name, inner in tree.items() if isinstance(tree, dict) else ():
        where = (*above, name)
        _note_merged(inner, where, lines.setdefault(where, line), lines)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe YAML loader that makes JSON values only."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # PyYAML raises whatever int(), float() and its own tables raise
            raise _no_value(node, "is not of its type") from error
        if isinstance(value, float) and not math.isfinite(value):
            raise _no_value(node, "is no finite number")
        if isinstance(value, int | float) and not isinstance(value, bool) and _OLD_NUMBER.search(node.value):
            raise _no_value(node, "is one of YAML 1.1's numbers, in which 010, 1:30 and 1_0 are 8, 90 and 10")
        if isinstance(value, int) and not -INTEGER <= value < INTEGER:
            raise _no_value(node, "does not fit into 64 bits")
        return value


def _no_value(node: yaml.Node, why: str) -> yaml.YAMLError:
    """Return an error for a scalar that is no value."""
    # the value is not shown: it may be a secret
    return yaml.constructor.ConstructorError(None, None, f"the value {why}", node.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
