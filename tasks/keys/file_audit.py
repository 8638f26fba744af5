"""Check while a stage runs that it reads no file of the project that its key does not include.

A stage's key is the hash of everything that decides its result. It includes the modules that are imported by import
statements, directly or indirectly, and the declared assets (other files that the stage reads, listed in its decorator).
If the stage read any other file of the project (a module imported by name, a template beside the code), an edit of it could
change the result but not the key. So an audit hook in the stage's process checks every file that Python opens, compiled
modules included. A file that the `Permit` lacks raises CodeError at once, before hours of training are spent, and again at
the end if the stage caught that error. A module that was edited after the key was computed is refused, too.

Checked: files that Python opens in this process, in any thread, and scripts passed to a subprocess. Not checked: files that
native libraries open (pyarrow, tokenizers, safetensors), and files that a subprocess reads.
Costs 0.2 ms a stage, 0.1 us an audit event, 1 us an opened file, 5 us one of the project (tests/bench/bench_proof.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import source_from_cache
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import CodeError, Interrupted
from trnflow.tasks.keys.hash_cache import stamp


@dataclass(frozen=True)
class Permit:
    """The files of the project that a stage may read, because its key (the hash of everything that decides its result)
    covers them. All paths are absolute; folders end with a separator.

    Attributes:
        stage: The stage's name, for messages.
        roots: The folders of the project that are checked, each as (folder, base): `base` is the folder to which paths
            in messages are relative. Files outside these folders may be read.
        files: Files that may be read: those included in the stage's key, and inputs.
        exempt: Folders below the roots that hold no code and may be read: the store, the Python environment, inputs.
        code: {path of a module: (stamp, code hash)} when the key was computed; a stamp is a file's inode, size and
            times (see `trnflow.tasks.keys.hash_cache.stamp`).
    """

    stage: str
    roots: tuple[tuple[str, str], ...]
    files: frozenset[str]
    exempt: tuple[str, ...]
    code: dict[str, tuple[str, str]]

    def refused(self, path: str) -> str | None:
        """Check whether the stage may read a file, by this permit: the list of project files that the stage's cache key
        covers. Return None if it may, else the file's path relative to the project.

        path: absolute. Besides the files of the permit, a stage may read files outside the project, and files in hidden
        folders (.git, .venv, .trnflow) or in `__pycache__`. None is returned, too, if `path` is not a file.
        """
        if path in self.files or path.startswith(self.exempt):
            return None
        for root, base in self.roots:
            if path.startswith(root):
                hidden = os.sep + "." in path[len(root) - 1 :] or os.sep + "__pycache__" + os.sep in path
                return None if hidden or not os.path.isfile(path) else path[len(base) :]
        return None

    def edited(self, path: str) -> bool:
        """Return whether a module's code has changed since the stage's cache key was computed; False for a file that is
        not in the attribute `code` (the modules whose code the key covers).

        path: the module's file, absolute. The file is read only if its stamp (inode, size and times) has changed.
        """
        known = self.code.get(path)
        if known is None or stamp(path) == known[0]:
            return False
        from trnflow.tasks.keys.code_closure import hash_file

        return hash_file(Path(path)) != known[1]

    def to_json(self) -> Meta:
        """Return the permit (the files of the project that a stage may read) as a JSON object, which `from_json`
        reads."""
        return {**asdict(self), "files": sorted(self.files)}

    @classmethod
    def from_json(cls, document: Json) -> Permit:
        """Return the permit (the files of the project that a stage may read) from the JSON object that `to_json`
        returned."""
        roots = tuple((root, base) for root, base in document["roots"])
        code = {path: (then, found) for path, (then, found) in document["code"].items()}
        return cls(document["stage"], roots, frozenset(document["files"]), tuple(document["exempt"]), code)


class Witness:
    """Check the files and modules that one stage reads, and record violations: reads of files that the permit (the list
    of project files that the stage's cache key covers) does not allow, or of modules that were edited.

    Attributes:
        permit: The files of the project that the stage may read.
        violations: The errors raised so far, in order.
    """

    def __init__(self, permit: Permit) -> None:
        self.permit = permit
        self.violations: list[CodeError] = []
        self._looking: set[int] = set()  # threads that are just reading a module to see whether it was edited

    def opened(self, path: Any) -> None:
        """Check that the stage may read a file that the process is about to open. Source lines that are read to be
        shown in a traceback are not checked.

        path: as Python opened the file: text, bytes or a path object; a file descriptor is ignored.

        Raises:
            CodeError: The permit (the list of project files that the stage's cache key covers) does not allow the file,
                or the module was edited since the key was computed. The error is also added to `violations`.
        """
        source = _source(_absolute(path))
        name = self.permit.refused(source)
        if (name is None and source not in self.permit.code) or get_ident() in self._looking or _is_traceback():
            return
        if name is not None:
            self._refuse(_unknown(self.permit.stage, name))
        self._looking.add(get_ident())
        try:
            if self.permit.edited(source):
                self._refuse(edited(self.permit.stage, source))
        finally:
            self._looking.discard(get_ident())

    def used(self, module: ModuleType) -> None:
        """Check the file that a loaded module came from. CodeError, which is also added to `violations`, if the permit
        (the list of project files that the stage's cache key covers) does not allow the file."""
        name = self.permit.refused(_file(module))
        if name is not None:
            self._refuse(_unknown(self.permit.stage, name))

    def _refuse(self, error: CodeError) -> None:
        self.violations.append(error)
        raise error

    def refuse_recorded(self) -> None:
        """Raise the first of `violations` (the CodeErrors for files that the stage read although its cache key does not
        cover them), even if the stage caught that error; do nothing if there is none."""
        if self.violations:
            raise self.violations[0]


def edited(stage: str, what: str) -> CodeError:
    """Return, without raising it, the error for a module that changed since the stage's key (the hash of everything
    that decides its result) was computed. stage: the stage's name; what: the module's name or file.
    """
    return CodeError(
        f"{what} was edited while this run was going: what {stage} would run is not what its key says, so nothing is published",
        "run again (training goes on from its last checkpoint if you undo the edit)",
    )


@contextmanager
def watch_process(permit: Permit) -> Iterator[None]:
    """Check the files that this process reads while the context is open; at its end, check that all loaded modules are
    permitted, too.

    permit: the files of the project that the stage may read. The process must have been started for this one stage.

    Raises:
        CodeError: The stage read a file or module of the project that its key (the hash of everything that decides its
            result) does not include, or one that was edited. Raised at the access, and again at the end if the stage
            caught it or raised another error in its place.
    """
    _install()
    witness = Witness(permit)
    with _violations_raised(witness):
        _watching.append(witness)
        try:
            yield
            for module in list(sys.modules.values()):
                witness.used(module)
        finally:
            _watching.remove(witness)


def refuse_recorded() -> None:
    """Raise the first violation recorded in this process, if any: the CodeError for a file that the stage may not read.
    Called in the process of a stage before the result of a part (one piece of the stage's divided work) is
    published."""
    for witness in _watching:
        witness.refuse_recorded()


@contextmanager
def _violations_raised(witness: Witness) -> Iterator[None]:
    """Raise the first recorded violation, even if the stage caught it or raised another error in its place."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        if witness.violations and error is not witness.violations[0]:
            raise witness.violations[0] from error
        raise
    witness.refuse_recorded()


def _unknown(stage: str, name: str) -> CodeError:
    if name.endswith(".py"):
        module = name.removesuffix(".py").removesuffix(f"{os.sep}__init__").replace(os.sep, ".")
        return CodeError(
            f"{stage} used {name}, and its key does not know that module: an edit of it would go unnoticed, "
            "so nothing is published",
            f"load it with an import statement (at the top, or in a function): import {module}",
        )
    return CodeError(
        f"{stage} read {name}, and its key does not know that file: an edit of it would go unnoticed, so nothing is published",
        f'declare it, @stage(..., assets=("{name}",)), or make it an input',
    )


# The audit hook. Python can't remove an audit hook: it is added when a stage begins, and does nothing after the stage.

_watching: list[Witness] = []
_installed: list[bool] = []


def _install() -> None:
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open":
        if not arguments[2] & os.O_WRONLY:
            _watching[-1].opened(arguments[0])
    elif event == "subprocess.Popen" and isinstance(arguments[1], list | tuple):
        for word in arguments[1]:
            if os.fsdecode(word).endswith(".py"):
                _watching[-1].opened(word)


def _file(module: Any) -> str:
    """Return the file that a module was loaded from; empty for a module without a file, and for objects in sys.modules
    that are not modules."""
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def _absolute(path: Any) -> str:
    """Return the absolute path of an `open` event; "" if a file descriptor was opened."""
    if isinstance(path, int):
        return ""
    text = os.fsdecode(path)
    return text if text.startswith(os.sep) and ".." not in text else os.path.abspath(text)


def _source(path: str) -> str:
    """Return the path of the source file of a compiled module (.pyc); any other path unchanged."""
    if path.endswith(".pyc"):
        with contextlib.suppress(ValueError, NotImplementedError):
            return source_from_cache(path)
    return path


def _is_traceback() -> bool:
    """Return whether the file is being opened by linecache, which reads source lines to show them in tracebacks and
    warnings."""
    frame = sys._getframe(3)
    callers = (frame, frame.f_back)
    return any(caller is not None and caller.f_globals.get("__name__") == "linecache" for caller in callers)
