"""The proof that a key knows the code: what a running stage reads of the project is seen, and refused if it isn't hashed.

A stage's key holds the modules it imports with statements, at any depth, and its declared assets. All else that it could read
below the project's folder (a module imported by name, a template beside the code) would change results behind the key's
back. So an audit hook sees every file that is opened while the stage runs, compiled modules included, and refuses those that
its `Permit` lacks: with CodeError on the spot, so that hours of training are not spent first, and again at the end, should
the stage have caught it. Modules that were loaded before the stage began are watched for being used, and one that is loaded
must be what was hashed: an edit in between is an error too.

Seen: Python's own opens, in this process; threads that the stage starts; scripts handed to a subprocess. Not seen: files that
native libraries open themselves (pyarrow, tokenizers, safetensors), and what a subprocess reads.
Costs 0.2 ms a stage, 0.1 us an audit event, 1 us an opened file, 5 us one of the project (tests/bench/bench_proof.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import source_from_cache
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

from tasks.artifact import Json, Meta
from tasks.errors import CodeError, Interrupted
from tasks.memo import stamp


@dataclass(frozen=True)
class Permit:
    """What a stage may read of the project. All paths are absolute, folders end with a separator.

    roots: (folder, the folder that its files are named from): the project's; files: those that the key knows, and inputs;
    exempt: folders below the roots that hold no code: the store, the environment, inputs; code: path -> (stamp, code hash),
    as the key has it."""

    stage: str
    roots: tuple[tuple[str, str], ...]
    files: frozenset[str]
    exempt: tuple[str, ...]
    code: dict[str, tuple[str, str]]

    def refused(self, path: str) -> str | None:
        """The name of a file of the project that the key does not know; None for any other file, and for what is none.
        Hidden folders hold no code (.git, .venv, .trnflow, caches)."""
        if path in self.files or path.startswith(self.exempt):
            return None
        for root, base in self.roots:
            if path.startswith(root):
                hidden = os.sep + "." in path[len(root) - 1 :] or os.sep + "__pycache__" + os.sep in path
                return None if hidden or not os.path.isfile(path) else path[len(base) :]
        return None

    def edited(self, path: str) -> bool:
        """Whether a module is no longer what was hashed. Its code is read only when its stamp says that it may be."""
        known = self.code.get(path)
        if known is None or stamp(path) == known[0]:
            return False
        from tasks.fingerprint import hash_file

        return hash_file(Path(path)) != known[1]

    def to_json(self) -> Meta:
        return {**asdict(self), "files": sorted(self.files)}

    @classmethod
    def from_json(cls, document: Json) -> Permit:
        roots = tuple((root, base) for root, base in document["roots"])
        code = {path: (then, found) for path, (then, found) in document["code"].items()}
        return cls(document["stage"], roots, frozenset(document["files"]), tuple(document["exempt"]), code)


class Witness:
    """Sees for one stage. offences: what it refused."""

    def __init__(self, permit: Permit) -> None:
        self.permit = permit
        self.offences: list[CodeError] = []
        self._looking: set[int] = set()  # threads that read a module only to see whether it was edited

    def opened(self, path: Any) -> None:
        """CodeError unless the permit allows it. Showing a line of source in a traceback is no use of it."""
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
        name = self.permit.refused(_file(module))
        if name is not None:
            self._refuse(_unknown(self.permit.stage, name))

    def _refuse(self, error: CodeError) -> None:
        self.offences.append(error)
        raise error

    def refuse_offenders(self) -> None:
        """CodeError if the stage has offended by now, though it may have swallowed the error."""
        if self.offences:
            raise self.offences[0]


def edited(stage: str, what: str) -> CodeError:
    """A module is not, or no longer, what the key says."""
    return CodeError(
        f"{what} was edited while this run was going: what {stage} would run is not what its key says, so nothing is published",
        "run again (training goes on from its last checkpoint if you undo the edit)",
    )


@contextmanager
def watch(permit: Permit) -> Iterator[None]:
    """Watch this thread, and those it starts, while a stage runs in it. CodeError, whatever else the stage made of it."""
    _install()
    witness, thread = Witness(permit), get_ident()
    with _told(witness), _loaded_modules_watched(permit):
        _by_thread[thread] = witness
        try:
            yield
        finally:
            del _by_thread[thread]


@contextmanager
def watch_process(permit: Permit) -> Iterator[None]:
    """Watch this whole process, which was started for one stage: all it has loaded is checked too, when the stage is done."""
    _install()
    witness = Witness(permit)
    with _told(witness):
        _process.append(witness)
        try:
            yield
            for module in list(sys.modules.values()):
                witness.used(module)
        finally:
            _process.remove(witness)


@contextmanager
def unwatched() -> Iterator[Witness | None]:
    """What the flow does in a stage's thread (showing progress, say) is not the stage's doing. Yields who watched."""
    witness = _by_thread.pop(get_ident(), None)
    try:
        yield witness
    finally:
        if witness is not None:
            _by_thread[get_ident()] = witness


@contextmanager
def _told(witness: Witness) -> Iterator[None]:
    """An offence that the stage swallowed, or turned into another error, is raised all the same."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        if witness.offences and error is not witness.offences[0]:
            raise witness.offences[0] from error
        raise
    if witness.offences:
        raise witness.offences[0]


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


# The hook. It can't be taken out again: it is put in when the first stage runs, and does nothing between stages.

_by_thread: dict[int, Witness] = {}
_process: list[Witness] = []
_start_thread = threading.Thread.start


def _install() -> None:
    if threading.Thread.start is _start_thread:
        threading.Thread.start = _start_watched  # type: ignore[method-assign, assignment]
        sys.addaudithook(_hook)


def _witness() -> Witness | None:
    return _process[-1] if _process else _by_thread.get(get_ident())


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        if (_by_thread or _process) and not arguments[2] & os.O_WRONLY and (witness := _witness()):
            witness.opened(arguments[0])
    elif event == "subprocess.Popen" and (witness := _witness()) and isinstance(arguments[1], list | tuple):
        for word in arguments[1]:
            if os.fsdecode(word).endswith(".py"):
                witness.opened(word)


def _start_watched(thread: threading.Thread) -> None:
    """Thread.start: a thread that a watched thread starts is watched."""
    witness = _by_thread.get(get_ident())
    if witness is not None:
        thread.run = partial(_run_watched, witness, thread.run)  # type: ignore[method-assign]
    _start_thread(thread)


def _run_watched(witness: Witness, run: Callable[[], None]) -> None:
    _by_thread[get_ident()] = witness
    try:
        run()
    finally:
        del _by_thread[get_ident()]


class _Watched(ModuleType):
    """A module that the running stage must not use, though it is loaded: other stages, the flow."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        witness = _by_thread.get(get_ident())
        if witness is not None and not name.startswith("__"):  # looking through sys.modules is no use
            witness.used(self)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, as any module: a function that travels to a worker of Ray's may refer to one."""
        return import_module, (self.__name__,)


@contextmanager
def _loaded_modules_watched(permit: Permit) -> Iterator[None]:
    watched = [
        module
        for module in list(sys.modules.values())
        if type(module) is ModuleType and permit.refused(_file(module)) is not None
    ]
    for module in watched:
        module.__class__ = _Watched
    try:
        yield
    finally:
        for module in watched:
            module.__class__ = ModuleType


def _file(module: Any) -> str:
    """Where a module was loaded from; empty for one without a file (and for the odd things in sys.modules)."""
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def _absolute(path: Any) -> str:
    """The path of an open: "" for a descriptor."""
    if isinstance(path, int):
        return ""
    text = os.fsdecode(path)
    return text if text.startswith(os.sep) and ".." not in text else os.path.abspath(text)


def _source(path: str) -> str:
    """The source of a compiled module; any other path as it is."""
    if path.endswith(".pyc"):
        with contextlib.suppress(ValueError, NotImplementedError):
            return source_from_cache(path)
    return path


def _is_traceback() -> bool:
    """Whether source is being read to be shown: linecache opens it for tracebacks and warnings, through tokenize."""
    frame = sys._getframe(3)
    callers = (frame, frame.f_back)
    return any(caller is not None and caller.f_globals.get("__name__") == "linecache" for caller in callers)
