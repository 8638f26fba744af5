"""What a stage may read of the project while it runs: what its key holds. `tasks.witness` holds it to that.

The project is the folder that holds the packages, where `pyproject.toml` or `.git` says so; installed, the packages alone.
Plumbing counts by its schema, and what carries bytes without making any (`tasks.launch`, `tasks.store`) by nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tasks.artifact import Input, Json, Meta, Source
from tasks.fingerprint import PLUMBING, analyse, locator, project_folder
from tasks.memo import Memo, stamp
from tasks.stage import Stage
from tasks.witness import Permit, edited

CARRIERS = ("tasks/launch", "tasks/store", "tasks/witness.py")
"""The runner's own, in a stage's process: paths beside the packages."""

CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR")


def permit_for(
    stage: Stage, code: Meta, inputs: Iterable[Input | Source], places: Iterable[str | Path], memo: Memo
) -> Permit:
    """code: that of the key; inputs: those of this call; places: folders that hold no code (the home, the store).

    CodeError when a module is no longer what the key says, or not what this process has loaded and would run. Costs a
    millisecond, memoised."""
    top = stage.function.__module__.split(".")[0]
    bases = sorted({str(form) for name in (top, "tasks") for form in _forms(project_folder(name))})
    roots = tuple((root, f"{base}{os.sep}") for base in bases for root in _roots(base, top))
    beside = [sys.prefix, sys.base_prefix, *places, *_locations(inputs), *filter(None, map(os.environ.get, CACHES))]
    carriers = [Path(base, name) for base in bases for name in CARRIERS]
    files, folders = _sorted_out([*carriers, *map(Path, beside)], roots)
    known = {str(form): name for name, path in _known(stage, code, top) for form in _forms(path)}
    return Permit(
        stage.name, roots, frozenset(files | known.keys()), tuple(sorted(folders)), _hashed(stage, code, known, memo)
    )


def note_loaded(memo: Memo) -> None:
    """Remember the code of the modules that this process has loaded by now: an edit does not change what it runs."""
    locate = locator({"tasks"})
    for name, module in list(sys.modules.items()):
        path = locate(name) if name not in PLUMBING else None
        if path is not None and _loaded.get(name, (None, ""))[0] is not module:
            _loaded[name] = (module, analyse(path, memo)["hash"])


_loaded: dict[str, tuple[ModuleType, str]] = {}


def _known(stage: Stage, code: Meta, top: str) -> Iterator[tuple[str, Path]]:
    """The files behind the code part of the stage's key, and plumbing."""
    locate = locator({top, "tasks"})
    for name in (*code, *PLUMBING):
        path = locate(name)
        if path is not None:
            yield name, path
    for asset in stage.assets:
        yield asset, project_folder(top) / asset


def _hashed(stage: Stage, code: Meta, known: dict[str, str], memo: Memo) -> dict[str, tuple[str, str]]:
    """path -> (stamp, code hash) of the modules that count by their code."""
    found = {}
    for path, name in known.items():
        if name in stage.assets or not str(code.get(name, "")).startswith("sha256:"):
            continue
        now = stamp(path)
        would_run = _loaded.get(name, (None, code[name]))[1] if not stage.process else code[name]
        if not code[name] == would_run == analyse(Path(path), memo)["hash"]:
            raise edited(stage.name, name)
        found[path] = (now, code[name])
    return found


def _roots(base: str, top: str) -> list[str]:
    folder = Path(base)
    if any((folder / mark).exists() for mark in ("pyproject.toml", ".git")):
        return [f"{base}{os.sep}"]
    return [f"{folder / name}{os.sep}" for name in ("tasks", "flows", "conf", top) if (folder / name).is_dir()]


def _sorted_out(paths: list[Path], roots: tuple[tuple[str, str], ...]) -> tuple[set[str], set[str]]:
    """(files, folders) of `paths` that lie below a root; one that holds a root would exempt all of it."""
    files: set[str] = set()
    folders: set[str] = set()
    for path in (form for given in paths for form in _forms(given)):
        if not any(f"{path}{os.sep}".startswith(root) and f"{path}{os.sep}" != root for root, _ in roots):
            continue
        if path.is_file():
            files.add(str(path))
        else:
            folders.add(f"{path}{os.sep}")
    return files, folders


def _locations(inputs: Iterable[Input | Source]) -> Iterator[str]:
    """Every string in a source's location that is the path of something."""
    pending: list[Json] = [item.location for item in inputs if isinstance(item, Source)]
    while pending:
        found: Any = pending.pop()
        if isinstance(found, dict):
            pending.extend(found.values())
        elif isinstance(found, list | tuple):
            pending.extend(found)
        elif isinstance(found, str) and os.path.isabs(found):
            yield found


def _forms(path: Path) -> set[Path]:
    """As it is named, and where it really is."""
    return {path.absolute(), path.resolve()}
