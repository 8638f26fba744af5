"""List the files of the project that a stage may read: those that the stage's key covers. The key is the hash of
everything that decides the stage's result. While the stage runs, `trnflow.tasks.keys.file_audit` checks each file that the
stage opens against this list.

The project is the folder that contains the package `trnflow`, or the stage's own package, if that folder has a
`pyproject.toml` or `.git`; otherwise (installed packages) only the packages of this project and of the stage. A stage
may also read two groups of modules whose code its key does not hash: PLUMBING, of which the key has version numbers
(schema numbers) instead, and CARRIERS (`trnflow.tasks.launch` and others), which only move data and are not in the key.
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

CARRIERS = ("trnflow/tasks/launch", "trnflow/tasks/store", "trnflow/tasks/system", "trnflow/tasks/keys/file_audit.py")
"""Code of the runner that a stage's process uses. Paths relative to the folder that holds the packages."""

CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR")


def permit_for(
    stage: Stage, code: Meta, inputs: Iterable[Input | Source], places: Iterable[str | Path], memo: Memo
) -> Permit:
    """Build the permit of a stage: the files of the project that it may read, because its key (the hash of everything
    that decides its result) covers them. Takes about a millisecond.

    Args:
        stage: The description of the stage function. Its declared assets (other files that the stage reads, listed in
            its decorator) may be read.
        code: The table `code` of the stage's key document (the JSON of which the key is the hash): {module: code hash,
            or for some modules of this project a schema number}. These modules may be read.
        inputs: The artifacts and sources (data or a model from outside the store) that the stage reads in this call.
            The files of sources may be read.
        places: Folders that hold data and no code, such as the home (the folder of local state) and the store.
        memo: The hash cache, which remembers the code hashes of files that have not changed.

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
    """Yield (module or package, file) of all modules in the code part of the stage's key, and of PLUMBING."""
    locate = locator({top, "trnflow"})
    for name in (*code, *PLUMBING):
        path = locate(name)
        if path is not None:
            yield name, Path(path)
    for asset in stage.assets:
        yield asset, project_folder(top) / asset


def _hashed(stage: Stage, code: Meta, known: dict[str, str], memo: Memo) -> dict[str, tuple[str, str]]:
    """Return {path: (stamp, code hash)} of the modules that the key names by a hash of their code."""
    found = {}
    for path, name in known.items():
        if name in stage.assets or not str(code.get(name, "")).startswith("sha256:"):
            continue
        now = stamp(path)
        if code[name] != analyse(path, memo)["hash"]:
            raise edited(stage.name, name)
        found[path] = (now, code[name])
    return found


def _roots(base: str, top: str) -> list[str]:
    folder = Path(base)
    if any((folder / mark).exists() for mark in ("pyproject.toml", ".git")):
        return [f"{base}{os.sep}"]
    # in a checkout the parts of the package are links, and a file below one may be opened under either name
    packages = [folder / name for name in ("trnflow", "trnflow/flows", "trnflow/tasks", "conf", top)]
    return [f"{form}{os.sep}" for package in packages if package.is_dir() for form in _forms(package)]


def _sorted_out(paths: list[Path], roots: tuple[tuple[str, str], ...]) -> tuple[set[str], set[str]]:
    """Return (files, folders): those of `paths` that lie below a root. A folder that contains a root is left out,
    because it would permit all files of the project."""
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
    """Yield each string in a source's location that is the path of an existing file or folder."""
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
    """Return the absolute path as given, and the path with symbolic links resolved."""
    return {path.absolute(), path.resolve()}
