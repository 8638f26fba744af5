"""Recipe files: YAML that extends bases, merged deeply, with dotted overrides on top; every value remembers its line.

A recipe is a name in `conf/` or a path to a YAML file; `extends` names others the same way, later ones win and the recipe
itself wins over all. Mappings merge, everything else replaces.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tasks.errors import ConfigError

Origins = dict[tuple[str, ...], str]


@cache
def conf_folder() -> Path:
    """Where the shipped recipes lie: inside the wheel, or at the checkout's top."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


def recipe_names() -> list[str]:
    """The shipped recipes, bases left out."""
    return sorted(path.stem for path in conf_folder().glob("*.yaml"))


def read_recipe(name: str, overrides: Iterable[str] = ()) -> tuple[dict[str, Any], Origins]:
    """(the merged tree, where each setting came from). ConfigError for unknown recipes, bad YAML and bad overrides."""
    tree, origins = _read(_find(name, Path.cwd()), ())
    for override in overrides:
        path, value = _parse_override(override)
        _merge(tree, _nested(path, value))
        origins[path] = f"override {override.split('=', 1)[0]}"
    return tree, origins


def origin_of(path: tuple[str, ...], origins: Origins) -> str:
    """The file and line (or override) that set `path`, or something in it, or the nearest setting above it that has one."""
    inside = [where for setting, where in origins.items() if setting[: len(path)] == path]
    if inside:
        return origins.get(path, inside[-1])
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return "recipe"


def nearest(word: str, words: Iterable[str]) -> str:
    """The most similar of `words`, or an empty string when none is similar."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)), "")


def _find(name: str, beside: Path) -> Path:
    if name.endswith((".yaml", ".yml")):
        path = (beside / Path(name).expanduser()).resolve()
        if path.is_file():
            return path
        raise ConfigError(f"there is no recipe file {name}", "check the path")
    path = conf_folder() / f"{name}.yaml"
    if path.is_file() and path.resolve().is_relative_to(conf_folder().resolve()):
        return path
    close = nearest(name, recipe_names())
    hint = f"did you mean {close}? " if close else ""
    raise ConfigError(
        f"there is no recipe {name}", f"{hint}`trnflow recipes` lists them; a file of your own ends in .yaml"
    )


def _read(path: Path, above: tuple[Path, ...]) -> tuple[dict[str, Any], Origins]:
    if path in above:
        raise ConfigError(f"{path.name} extends itself by way of {above[-1].name}", "break the circle")
    own, own_origins = _load(path)
    tree: dict[str, Any] = {}
    origins: Origins = {}
    bases = own.pop("extends", [])
    for base in [bases] if isinstance(bases, str) else bases:
        base_tree, base_origins = _read(_find(base, path.parent), (*above, path))
        _merge(tree, base_tree)
        origins |= base_origins
    _merge(tree, own)
    return tree, origins | own_origins


def _load(path: Path) -> tuple[dict[str, Any], Origins]:
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=_Loader)
        tree = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(
            f"{path}{line}: not valid YAML: {getattr(error, 'problem', error)}", "mend the line"
        ) from error
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}: a recipe is a mapping of sections", "see `trnflow config demo`")
    origins: Origins = {}
    _note_lines(node, (), path, origins)
    return dict(tree), origins


def _note_lines(node: yaml.MappingNode, above: tuple[str, ...], path: Path, origins: Origins) -> None:
    seen = set()
    for key, value in node.value:
        where = (*above, str(key.value))
        if where in seen:
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: {'.'.join(where)} stands twice", "keep one of them")
        seen.add(where)
        origins[where] = f"{path}:{key.start_mark.line + 1}"
        if isinstance(value, yaml.MappingNode):
            _note_lines(value, where, path, origins)


def _parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"the override {text!r} is not of the form section.setting=value", "such as train.epochs=3")
    try:
        return tuple(name.strip().split(".")), yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"the override {text!r} has a value that is not YAML", "quote it") from error


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return dict(value)


def _merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        elif isinstance(value, dict):
            into[name] = {}
            _merge(into[name], value)
        else:
            into[name] = value


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader for which 5e-5 is a number, as everywhere but in YAML 1.1."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
