"""Check what Prefect sends of a recipe: a flow's parameters, an event's payload, a deployment's overrides.

Whoever reaches Prefect's API chooses recipe and overrides, and must get neither a shell nor the machine's files by them. What
is typed on the command line is not checked: who types has a shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trnflow.flows.recipes.files import ON, Origins, RecipeTree, origin_of, read_tree
from trnflow.flows.recipes.recipe import Recipe, validated
from trnflow.flows.recipes.schema import below, cut
from trnflow.flows.recipes.yaml_tree import OVERRIDE
from trnflow.tasks.config import BOUND, GUARDED, SOURCE, Mark
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.hooks import place_of
from trnflow.tasks.sources.data_files import format_of
from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import hide_secrets

GLOB = re.compile(r"[*?\[]")
FIX = "write it into a recipe's file there, or run the recipe with `trnflow run`"


def load_sent(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """Read and validate a recipe that Prefect names. Raises ConfigError as `load`, `check_sent` and `refuse_code_elsewhere`."""
    texts, read = [*overrides], read_tree(name, Recipe)
    check_sent(read, texts)
    recipe = validated(read.with_overrides(texts), name)
    refuse_code_elsewhere(recipe)
    return recipe


def check_sent(read: RecipeTree, overrides: Iterable[str]) -> None:
    """Raise ConfigError for a value of a guarded setting that an override changes, or that a recipe outside the deployment's
    folder gives. Empty values pass.

    read: the recipe without the overrides.
    """
    texts = [*overrides]
    # hardware files are shipped
    own = read.with_overrides(text for text in texts if text.partition("=")[0].strip() == ON[0])
    hosts = frozenset[tuple[str, str]]() if is_outside(read) else frozenset(_hosts(own))
    sent = read.with_overrides(texts)
    for path, mark in guarded(sent.tree, read.root):
        value = _at(sent.tree, path)
        if _is_given(mark, value) and (value != _at(own.tree, path) or _is_moved(path, value, sent)):
            _check(f"{OVERRIDE}{'.'.join(path)}", mark, value, Path.cwd(), hosts)
    for path, mark in guarded(own.tree, read.root) if is_outside(read) else ():
        value = _at(own.tree, path)
        if _is_given(mark, value) and (folder := _foreign(path, own.origins)):
            _check(f"{'.'.join(path)} in a recipe in {folder}", mark, value, folder, hosts)


def _is_given(mark: Mark, value: Any) -> bool:
    return value is not None if mark is BOUND else bool(value)


def is_outside(read: RecipeTree) -> bool:
    """Return whether a recipe's file lies outside the deployment's folder, which is a flow's working directory."""
    return read.folder is not None and not read.folder.is_relative_to(_here())


def refuse_code_elsewhere(recipe: Recipe) -> None:
    """Raise ConfigError for own code outside the deployment's folder: the recipe's path is a free parameter."""
    for setting, (named, folder) in recipe.hooks.items():
        if folder and not place_of(setting, named, folder).is_relative_to(_here()):
            raise ConfigError(
                f"{setting}: {named} lies in {folder}, outside the deployment's folder {_here()}, where own code may run",
                "put the recipe and its code there, or run it with `trnflow run`",
            )


def guarded(value: Any, annotation: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mark]]:
    """Yield (path, mark) of the settings in a tree that have a mark of GUARDED. annotation: the type of `value`."""
    marks = getattr(annotation, "__metadata__", ())
    mark = next((mark for mark in GUARDED if mark in marks), None)
    if mark is not None:
        yield above, mark
        return
    for name, inner in _entries(value):
        yield from guarded(inner, below(annotation, name), (*above, name))


def _check(where: str, mark: Mark, value: Any, folder: Path, hosts: frozenset[tuple[str, str]]) -> None:
    """Raise ConfigError for a value, but for a SOURCE that `_may_read` allows."""
    if mark is not SOURCE:
        raise ConfigError(
            f"{where}: {mark.value}, and a run that Prefect starts takes it from recipe files in {_here()} alone", FIX
        )
    for text in _texts(value):
        if not _may_read(text, folder.resolve(), hosts):
            raise ConfigError(
                f"{where}: {cut(hide_secrets(text))} is neither a hub's name, nor rows or a model below "
                f"{folder.resolve()}, nor in a bucket or on a host that the recipe itself reads, and Prefect started this run",
                FIX,
            )


def _may_read(text: str, folder: Path, hosts: frozenset[tuple[str, str]]) -> bool:
    """Return whether a text is a hub's name, a relative path that stays below `folder`, or a URL with one of `hosts`."""
    # a variable's value would be sent to the host; what stands before `::` says how the rest is read; of `\\` URL parsers
    # make different hosts
    if any(sign in text for sign in ("${", "::", "\\")):
        return False
    path = local_path(text)
    if path is None:
        return _host(text) in hosts
    parts = Path(path).parts
    if Path(path).is_absolute() or path.startswith("~") or any(part.startswith(".") for part in parts):
        return False  # hidden files hold keys, and the home's
    try:
        return not GLOB.search(path) and _is_data(folder / path, folder)
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, a circle of links
        return False


def _is_data(place: Path, folder: Path) -> bool:
    """Return whether a path below `folder` is none, a file of rows or a tokenizer's, or a folder without links that lead out."""
    home = home_folder().resolve()
    if not place.resolve().is_relative_to(folder) or place.resolve().is_relative_to(home):
        return False
    if place.is_file():
        return format_of(place.name) is not None or place.name == "tokenizer.json"
    links = (Path(above, name) for above, *names in os.walk(place) for name in chain(*names))
    return all(link.resolve().is_relative_to(folder) for link in links if link.is_symlink())


def _hosts(read: RecipeTree) -> Iterator[tuple[str, str]]:
    for path, mark in guarded(read.tree, read.root):
        if mark is SOURCE:
            yield from filter(None, map(_host, _texts(_at(read.tree, path))))


def _host(text: str) -> tuple[str, str] | None:
    """Return (scheme, host or bucket) of a URL, None of a text that has none."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    host = parts.netloc.rpartition("@")[2]
    return (parts.scheme, host) if host and parts.scheme not in ("file", "local") else None


def _is_moved(path: tuple[str, ...], value: Any, sent: RecipeTree) -> bool:
    """Return whether an override repeats a recipe's path that it may lead out of the project."""
    # a recipe's relative path is joined to the folder of its file, an override's to the working directory
    is_override = origin_of(path, sent.origins).startswith(OVERRIDE) and sent.folder not in (None, _here())
    return is_override and any(".." in Path(text).parts for text in _texts(value))


def _foreign(path: tuple[str, ...], origins: Origins) -> Path | None:
    """Return the folder of a file outside the deployment's that sets a setting, or a part of its value; None if none does."""
    places = [origin for setting, origin in origins.items() if setting[: len(path)] == path]
    places = (
        places or [origins[path[:length]] for length in range(len(path) - 1, 0, -1) if path[:length] in origins][:1]
    )
    return next((place.folder for place in places if place.folder and not place.folder.is_relative_to(_here())), None)


def _here() -> Path:
    return Path.cwd().resolve()


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    """Return the value of a setting in a tree, None if it is not there."""
    for name in path:
        tree = dict(_entries(tree)).get(name)
    return tree


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield str(name), entry


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for _, entry in _entries(value):
        yield from _texts(entry)
