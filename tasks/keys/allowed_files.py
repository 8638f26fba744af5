"""Build a stage's permit.

Checked are this program's folder (installed: its package alone) and the folders that hold own modules of the closure;
of a stage with own code also all files elsewhere, but the system's, installed packages', inputs, caches and hidden ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import CODE, Input, Json, Meta, Source
from trnflow.tasks.keys.code_closure import PLUMBING, closure_files
from trnflow.tasks.keys.code_hash import analyse
from trnflow.tasks.keys.distributions import packages_folders
from trnflow.tasks.keys.file_audit import Permit, edited
from trnflow.tasks.keys.hash_cache import Memo, stamp
from trnflow.tasks.keys.hooks import FILES, refuse_missing
from trnflow.tasks.keys.module_finder import STANDARD_LIBRARY, is_of_trnflow, project_folder
from trnflow.tasks.stage import Stage

# These modules only move data, so no key has them. Paths are relative to the folder that holds the packages.
CARRIERS = (
    "trnflow/tasks/launch", "trnflow/tasks/store", "trnflow/tasks/system", "trnflow/tasks/keys/file_audit.py",
    "trnflow/tasks/documents.py",  # types alone
)  # fmt: skip

# Files of the system count by nothing, and own code may read them: time zones, types of files, the list of processors.
SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/nix", "/proc", "/sbin", "/sys", "/usr")

CACHES = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR",
    "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip


def permit_for(
    stage: Stage, code: Meta, inputs: Collection[Input | Source], places: Iterable[str | Path], memo: Memo
) -> Permit:
    """Build a stage's permit; takes about 1 ms.

    Args:
        code: The table `code` of the stage's key document.
        inputs: Artifacts and sources that the stage reads; files of sources are permitted, of the user's code those
            that are in the key.
        places: Folders that hold no code, such as the home and the store: files in them may be read.

    Raises:
        CodeError: A module has changed since the key was computed.
    """
    modules = closure_files(stage.function.__module__, memo)
    for item in inputs:
        if isinstance(item, Source) and item.kind == CODE:
            refuse_missing(item)
            modules |= item.location["files"] | item.location["program"]
    own = {name: file for name, file in modules.items() if not is_of_trnflow(file)}
    program, theirs = project_folder("trnflow"), {_base(name, file) for name, file in own.items()}
    roots = tuple(sorted({*_roots(program), *(_root(base, base) for folder in theirs for base in _forms(folder))}))
    bases = {base for folder in (program, *theirs) for base in _forms(folder)}
    beside = [sys.prefix, sys.base_prefix, *places, *_locations(inputs), *filter(None, map(os.environ.get, CACHES))]
    carriers = [base / name for base in bases for name in CARRIERS]
    files, folders = _sorted_out([*carriers, *map(Path, beside)], roots)
    assets = project_folder(stage.function.__module__.split(".")[0])
    known = {name: [Path(file)] for name, file in modules.items()}
    known |= {asset: [assets / asset] for asset in stage.assets} | {name: _plumbing(program, name) for name in PLUMBING}
    names = {str(form): name for name, paths in known.items() for path in paths for form in _forms(path)}
    elsewhere = [*SYSTEM, STANDARD_LIBRARY, *packages_folders(), *map(str, beside)] if own else []
    given = {str(form) for path in map(Path, beside) if path.is_file() for form in _forms(path)}
    hidden = {f"{Path.home()}{os.sep}."} if own else set()  # caches and settings of libraries
    return Permit(
        stage.name,
        roots,
        frozenset(files | names.keys() | given),
        tuple(sorted(folders)),
        _hashed(stage, code, names, memo),
        tuple(sorted({f"{form}{os.sep}" for folder in elsewhere for form in _forms(Path(folder))} | hidden)),
        bool(own) and stage.role != "rows",  # `data.make` reads what it likes: `data.version` tells its state
    )


def _base(name: str, file: str) -> Path:
    """Return the folder that holds the top-level package or module of `name`."""
    path = Path(file)
    if name.startswith(FILES):
        return path.parent
    return path.parents[name.count(".") + (path.name.partition(".")[0] == "__init__")]


def _plumbing(program: Path, name: str) -> list[Path]:
    base = program.joinpath(*name.split("."))
    return [base.with_suffix(".py"), base / "__init__.py"]


def _hashed(stage: Stage, code: Meta, known: dict[str, str], memo: Memo) -> dict[str, tuple[str, str]]:
    """Return {path: (stamp, code hash)} of the modules that the key names by a hash."""
    hashed = {}
    for path, name in known.items():
        if name in stage.assets or not str(code.get(name, "")).startswith("sha256:"):
            continue
        # taken before the file is read: an edit in between shows as another stamp
        try:
            now = stamp(path)
            if code[name] != analyse(path, memo)["hash"]:
                raise edited(stage.name, name)
        except FileNotFoundError:
            raise edited(stage.name, name) from None
        hashed[path] = (now, code[name])
    return hashed


def _roots(program: Path) -> Iterator[tuple[str, str]]:
    for base in _forms(program):
        if any((base / mark).exists() for mark in ("pyproject.toml", ".git")):
            yield _root(base, base)
        else:
            # in a checkout the parts of the package are links, and a file below one may be opened under either name
            packages = [base / name for name in ("trnflow", "trnflow/flows", "trnflow/tasks", "conf")]
            yield from (_root(form, base) for package in packages if package.is_dir() for form in _forms(package))


def _root(folder: Path, base: Path) -> tuple[str, str]:
    return f"{folder}{os.sep}", f"{base}{os.sep}"


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
    sources = [given for given in inputs if isinstance(given, Source) and given.kind != CODE]
    pending: list[Json] = [given.location for given in sources]
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
