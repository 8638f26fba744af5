"""Turn pydantic's errors about a recipe into one ConfigError with file and line, setting, value, allowed values and
nearest known name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from trnflow.flows.recipes.files import Origins, nearest, origin_of
from trnflow.flows.recipes.other_names import missing, suggested
from trnflow.flows.recipes.schema import (
    Tree,
    allowed,
    annotation_at,
    below,
    choices,
    config_in,
    kinds_of,
    known_settings,
    shown,
    table_in,
)
from trnflow.tasks.errors import ConfigError

REMOVED = {
    "model.trust_remote_code": "was removed: it ran code beside the weights that is in no stage's key, so a change of that code "
    "was a hit, and the code was not in the result"
}
"""{setting that was removed: why}"""
# No error shows values of this mapping: they may be secrets.
HIDDEN = ("launch", "environment")
OURS = ("value_error", "assertion_error")
"""The types of errors of our own validators."""


class Recipes(NamedTuple):
    """A recipe that failed validation: its name as given, merged settings, and their origins."""

    root: type[BaseModel]
    name: str
    tree: Tree
    origins: Origins


class SettingError(NamedTuple):
    """One problem that pydantic found.

    kind: pydantic's type of the error, such as `extra_forbidden`; at_name: whether the name of the entry is wrong, not its
    value; text: the message of our own validator, or "".
    """

    setting: tuple[str, ...]
    kind: str
    at_name: bool
    text: str


def refused(error: ValidationError, read: Recipes) -> ConfigError:
    """Return one ConfigError about all problems, with the fix of the first; where several settings are unknown, a line for each
    problem with its own."""
    problems = dict[SettingError, None]()
    for entry in error.errors(include_url=False):
        text = entry["msg"].partition(", ")[2].rstrip(".") if entry["type"] in OURS else ""
        setting, at_name = _setting(entry["loc"], read.root)
        problems[SettingError(setting, entry["type"], at_name, text)] = None
    described = [_described(problem, read) for problem in problems if not _is_covered(problem, problems)]
    if sum(problem.kind == "extra_forbidden" for problem in problems) > 1:
        lines = dict.fromkeys(f"{text}: {fix}" for text, fix in described)
        return ConfigError("\n".join(lines), "correct each line as it says")
    return ConfigError("; ".join(dict.fromkeys(text for text, _ in described)), described[0][1])


def _setting(loc: Sequence[int | str], root: Any) -> tuple[tuple[str, ...], bool]:
    """Return (path of the setting that `loc` points to, whether its name is wrong)."""
    path: list[str] = []
    branch = False  # the next part of `loc` names a branch
    for part in loc:
        if part == "[key]":
            return tuple(path), True
        if branch:
            branch = False
            continue
        path.append(str(part))
        root = below(root, str(part))
        branch = len([kind for kind in kinds_of(root) if kind is not type(None)]) > 1
    return tuple(path), False


def _is_covered(problem: SettingError, problems: dict[SettingError, None]) -> bool:
    """Return whether another problem describes the mistake better: of a setting below, or of a wrong name."""
    path, others = problem.setting, [other for other in problems if other is not problem]
    return not problem.text and any(
        other.setting[: len(path)] == path
        and (len(other.setting) > len(path) or (other.at_name and not problem.at_name))
        for other in others
    )


def _described(problem: SettingError, read: Recipes) -> tuple[str, str]:
    """Return (what is wrong, the fix)."""
    path, setting = problem.setting, ".".join(problem.setting) or "the recipe"
    where = origin_of(path, read.origins)
    if problem.kind == "extra_forbidden":
        return _unknown(path, where, read)
    if problem.kind == "missing":
        return f"{read.name}: {setting} is missing", f"set it in the recipe, or add {setting}=..."
    value = _value(read.tree, path)
    given = "" if isinstance(value, dict) or path[:2] == HIDDEN else f" (given: {shown(value)})"
    if problem.text:
        return f"{where}: {setting}: {problem.text}{given}", _fix_of(problem.text, path, read)
    if problem.at_name:
        table = table_in(annotation_at(read.root, path[:-1]))
        names = choices(table.__args__[0] if table is not None else str)  # of the table's keys
        close = nearest(path[-1], names)
        wanted = f"one of {', '.join(names)}" if names else "text"
        return (
            f"{where}: {setting} is not a setting: its name must be {wanted}",
            f"did you mean {'.'.join((*path[:-1], close))}?" if close else f"rename it, or remove {setting}",
        )
    annotation = annotation_at(read.root, path)
    close = nearest(str(value), choices(annotation))
    quote = isinstance(value, bool | int | float) and str in kinds_of(annotation)
    fix = f"did you mean {setting}={close}?" if close else f"change {setting}{', or quote the value' if quote else ''}"
    section = config_in(annotation)
    if isinstance(value, str) and section is not None and "source" in section.model_fields:
        fix = f"did you mean {setting}.source?"
    what = "its value" if path[:2] == HIDDEN else shown(value)
    return f"{where}: {setting} can't be {what}: it takes {allowed(annotation)}", fix


def _fix_of(text: str, path: tuple[str, ...], read: Recipes) -> str:
    """Return what to do about a validator's text: what it asks for, else to change the settings that it names."""
    known = sorted(known_settings(read.root, path))
    asked = re.search(r": ((?:set|leave|give) .+)", text)
    if asked and known:
        return re.sub(rf"`?\b({'|'.join(known)})\b`?(?=[= ]|$)", lambda name: ".".join((*path, name[1])), asked[1])
    named = [".".join((*path, name)) for name in known if re.search(rf"\b{name}\b", text)]
    return f"change {' or '.join(named) or '.'.join(path)}"


def _unknown(path: tuple[str, ...], where: str, read: Recipes) -> tuple[str, str]:
    setting = ".".join(path)
    if setting in REMOVED:
        return f"{where}: {setting} {REMOVED[setting]}", f"leave {setting} out, and use a model that transformers knows"
    if apart := missing(path[-1]):
        return f"{where}: {setting} is not a setting", apart
    close = nearest(path[-1], known_settings(read.root, path[:-1]), cutoff=0.8)
    close = ".".join((*path[:-1], close)) if close else suggested(path, read.root)
    if not close and (similar := nearest(path[-1], known_settings(read.root, path[:-1]))):
        close = ".".join((*path[:-1], similar))
    fix = (
        f"did you mean {close}?" if close else f"`{shlex.join(['trnflow', 'config', read.name])}` shows those there are"
    )
    return f"{where}: {setting} is not a setting", fix


def _value(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if isinstance(tree, dict):
            tree = tree.get(name)
        elif isinstance(tree, list) and name.isdecimal() and int(name) < len(tree):
            tree = tree[int(name)]
    return tree
