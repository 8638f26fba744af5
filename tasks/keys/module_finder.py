"""Find the file that an import would load, without running any code: neither the module nor the packages above it."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    BuiltinImporter,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
)
from pathlib import Path
from typing import Literal, NamedTuple

from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.hash_cache import Stamp, stamp

Home = Literal["own", "trnflow", "installed", "standard"]

STANDARD_LIBRARY = os.path.dirname(os.__file__)
PACKAGES = ("site-packages", "dist-packages")


class FoundModule(NamedTuple):
    """A module on disk.

    file: None of a folder without `__init__.py`, and of built-in modules; folders: of a package, where its modules are looked
    up; home: `own` outside the standard library and the folders of installed packages.
    """

    file: str | None
    folders: tuple[str, ...]
    home: Home


class ModuleFinder:
    """Finds modules as a process does that has `search` at the head of `sys.path`.

    Attributes:
        path: The folders in which top-level modules are looked up.
        consulted: {path: stamp before it was looked at, None if there was nothing} of folders and files whose change may
        change what is found.
    """

    def __init__(self, search: tuple[str, ...]) -> None:
        self.path = [*search, *(folder for folder in import_path() if folder not in search)]
        self.consulted: dict[str, Stamp | None] = {}
        for folder in self.path:
            self._consult(folder)
        self._known: dict[str, FoundModule | None] = {}
        PathFinder.invalidate_caches()  # a finder's list of a folder may be older than a file made just now

    def find(self, name: str) -> FoundModule | None:
        """Return the module `name`, such as `a.b`; None if there is none. Raises CodeError for one in an archive."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> FoundModule | None:
        parent, _, _ = name.rpartition(".")
        if not parent:
            return self._find_top(name)
        above = self.find(parent)
        if above is None or not above.folders or above.home == "standard":
            return None
        if above.home in ("own", "trnflow"):
            self._consult_all(above.folders, name)
        # with the folders of the package above, so that nothing is imported
        spec = PathFinder.find_spec(name, list(above.folders))
        return _module(spec) if spec else self._editable(name)

    def _find_top(self, name: str) -> FoundModule | None:
        if name == "trnflow":
            return _module(PathFinder.find_spec(name, [str(project_folder(name))]))
        if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            return FoundModule(None, (), "standard")
        self._consult_all(self.path, name)
        spec = PathFinder.find_spec(name, self.path)
        return _module(spec) if spec else self._editable(name)

    def _editable(self, name: str) -> FoundModule | None:
        """Return a module of an editable installation: setuptools' finder has a table of folders, which is read."""
        for finder in self._editable_finders():
            self._consult(finder)
            for package, folder in reversed(_mapping(finder).items()):
                if name == package or name.startswith(f"{package}."):
                    at = os.path.join(folder, *name[len(package) :].split("."))
                    self._consult(os.path.dirname(at))
                    self._consult(at)
                    return _at(at)
        return None

    def _consult_all(self, folders: Iterable[str], name: str) -> None:
        """Stamp what decides where a module is: the folders looked in, and a folder of its name."""
        for folder in folders:
            self._consult(folder)
            # which an `__init__.py` makes a package
            if os.path.isdir(below := os.path.join(folder, name.rpartition(".")[2])):
                self._consult(below)

    def _consult(self, path: str) -> None:
        if path not in self.consulted:
            self.consulted[path] = stamp_or_none(path)

    def _editable_finders(self) -> list[str]:
        folders = [folder for folder in self.path if os.path.basename(folder) in PACKAGES]
        return sorted(str(file) for folder in folders for file in Path(folder).glob("__editable__*_finder.py"))


def stamp_or_none(path: str, stamp_of: Callable[[str], Stamp] = stamp) -> Stamp | None:
    """Return a path's stamp; None if there is nothing."""
    try:
        return stamp_of(path)
    except OSError:
        return None


def project_folder(package: str) -> Path:
    """Return the folder that contains an imported top-level package or module: a checkout, site-packages or any other."""
    # Links are not resolved: a package may hold links to its folders, and modules have the names below it.
    module = import_module(package)
    return Path(next(iter(getattr(module, "__path__", ())), None) or str(module.__file__)).parent


def import_path() -> list[str]:
    """Return the folders of `sys.path` in which a stage's process looks, too."""
    # Python puts the script's folder, or the working directory, first: a stage's process has neither
    first = {"", os.getcwd(), os.path.dirname(sys.argv[0])} if not sys.flags.safe_path else set()
    rest = sys.path[1:] if sys.path and sys.path[0] in first else sys.path
    return [os.path.abspath(folder) for folder in dict.fromkeys(rest) if folder]


def is_of_trnflow(path: str) -> bool:
    """Return whether a file is one of this program's."""
    return path.startswith(_folders_of_this_program())


def _home(path: str) -> Home:
    if is_of_trnflow(path):
        return "trnflow"
    if any(f"{os.sep}{folder}{os.sep}" in path for folder in PACKAGES):
        return "installed"
    return "standard" if path.startswith(f"{STANDARD_LIBRARY}{os.sep}") else "own"


@cache
def _folders_of_this_program() -> tuple[str, ...]:
    base = f"{project_folder('trnflow')}/trnflow"
    parts = [base, f"{base}/flows", f"{base}/tasks"]  # in a checkout two of them are links
    return tuple({f"{form}{os.sep}" for part in parts for form in (part, os.path.realpath(part))})


def _module(spec: ModuleSpec | None) -> FoundModule | None:
    if spec is None:
        return None
    folders = tuple(spec.submodule_search_locations or ())
    if not spec.has_location or spec.origin is None:
        return FoundModule(None, folders, _home(f"{folders[0]}{os.sep}")) if folders else None
    if not os.path.isfile(spec.origin):
        raise CodeError(
            f"{spec.name} is imported from {spec.origin}, whose code a key can't hash", "unpack it into a folder"
        )
    return FoundModule(spec.origin, folders, _home(spec.origin))


def _at(base: str) -> FoundModule | None:
    """Return the module whose path without suffix is `base`."""
    for suffix in (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES):
        if os.path.isfile(file := os.path.join(base, f"__init__{suffix}")):
            return FoundModule(file, (base,), _home(file))
    for suffix in (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES):
        if os.path.isfile(file := f"{base}{suffix}"):
            return FoundModule(file, (), _home(file))
    return FoundModule(None, (base,), _home(f"{base}{os.sep}")) if os.path.isdir(base) else None


def _mapping(finder: str) -> dict[str, str]:
    """Return {package: folder, or file without suffix} of setuptools' finder of an editable installation."""
    tables: dict[str, str] = {}
    for statement in ast.parse(Path(finder).read_bytes()).body:
        if isinstance(statement, ast.AnnAssign | ast.Assign) and statement.value is not None:
            targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            with contextlib.suppress(ValueError):
                if "MAPPING" in names:
                    tables |= ast.literal_eval(statement.value)
                elif "NAMESPACES" in names:
                    spaces = ast.literal_eval(statement.value)
                    tables |= {name: folders[0] for name, folders in spaces.items() if folders}
    return tables
