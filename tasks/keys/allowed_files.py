"""Build a stage's permit.

The project is the folder that holds the package `trnflow` or the stage's own package, if that folder has a
`pyproject.toml` or `.git`; else (installed) these packages alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Input, Json, Meta, Source
from trnflow.tasks.keys.code_closure import PLUMBING, analyse, locator, project_folder
from trnflow.tasks.keys.file_audit import Permit, edited
from trnflow.tasks.keys.hash_cache import Memo, stamp
from trnflow.tasks.stage import Stage

# These modules only move data, so no key has them. Paths are relative to the folder that holds the packages.
CARRIERS = ("trnflow/tasks/launch", "trnflow/tasks/store", "trnflow/tasks/system", "trnflow/tasks/keys/file_audit.py")

CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR")


def permit_for(
    stage: Stage, code: Meta, inputs: Iterable[Input | Source], places: Iterable[str | Path], memo: Memo
) -> Permit:
    """Build a stage's permit; takes about 1 ms.

    Args:
        code: The table `code` of the stage's key document.
        inputs: Artifacts and sources that the stage reads; files of sources are permitted.
        places: Folders that hold no code, such as the home and the store.

    Raises:
        CodeError: A module has changed since the key was computed.
    """
    top = stage.function.__module__.split(".")[0]
    bases = sorted({str(form) for name in (top, "trnflow") for form in _forms(project_folder(name))})
    roots = tuple((root, f"{base}{os.sep}") for base in bases for root in _roots(base, top))
    beside = [sys.prefix, sys.base_prefix, *places, *_locations(inputs), *filter(None, map(os.environ.get, CACHES))]
    carriers = [Path(base, name) for base in bases for name in CARRIERS]
    files, folders = _sorted_out([*carriers, *map(Path, beside)], roots)
    known = {str(form): name for name, path in _known(stage, code, top) for form in _forms(path)}
    return Permit(
        stage.name, roots, frozenset(files | known.keys()), tuple(sorted(folders)), _hashed(stage, code, known, memo)
    )


def _known(stage: Stage, code: Meta, top: str) -> Iterator[tuple[str, Path]]:
    """Yield (module or asset, file) of all that the stage's key covers, and of PLUMBING."""
    locate = locator({top, "trnflow"})
    for name in (*code, *PLUMBING):
        path = locate(name)
        if path is not None:
            yield name, Path(path)
    for asset in stage.assets:
        yield asset, project_folder(top) / asset


def _hashed(stage: Stage, code: Meta, known: dict[str, str], memo: Memo) -> dict[str, tuple[str, str]]:
    """Return {path: (stamp, code hash)} of the modules that the key names by a hash."""
    hashed = {}
    for path, name in known.items():
        if name in stage.assets or not str(code.get(name, "")).startswith("sha256:"):
            continue
        # taken before the file is read: an edit in between shows as another stamp
        now = stamp(path)
        if code[name] != analyse(path, memo)["hash"]:
            raise edited(stage.name, name)
        hashed[path] = (now, code[name])
    return hashed


def _roots(base: str, top: str) -> list[str]:
    folder = Path(base)
    if any((folder / mark).exists() for mark in ("pyproject.toml", ".git")):
        return [f"{base}{os.sep}"]
    # in a checkout the parts of the package are links, and a file below one may be opened under either name
    packages = [folder / name for name in ("trnflow", "trnflow/flows", "trnflow/tasks", "conf", top)]
    return [f"{form}{os.sep}" for package in packages if package.is_dir() for form in _forms(package)]


def _sorted_out(paths: list[Path], roots: tuple[tuple[str, str], ...]) -> tuple[set[str], set[str]]:
    """Return (files, folders) of those `paths` that lie below a root."""
    files: set[str] = set()
    folders: set[str] = set()
    for path in (form for given in paths for form in _forms(given)):
        # a folder that contains a root would permit all files of the project
        if not any(f"{path}{os.sep}".startswith(root) and f"{path}{os.sep}" != root for root, _ in roots):
            continue
        if path.is_file():
            files.add(str(path))
        else:
            folders.add(f"{path}{os.sep}")
    return files, folders


def _locations(inputs: Iterable[Input | Source]) -> Iterator[str]:
    """Yield each absolute path in the locations of sources."""
    pending: list[Json] = [given.location for given in inputs if isinstance(given, Source)]
    while pending:
        value: Any = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)
        elif isinstance(value, str) and os.path.isabs(value):
            yield value


def _forms(path: Path) -> set[Path]:
    """Return the absolute path as given, and with links resolved."""
    return {path.absolute(), path.resolve()}
