"""The audit: refuse each file of the project that a stage opens and its key does not cover.

Sees files that Python opens in this process, and scripts passed to a subprocess; not files that native libraries or
subprocesses read, which Landlock holds where own code runs (`Permit.held`). Costs 0.2 ms a stage, 1 us an opened file.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape, glob
from importlib.util import source_from_cache
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

from trnflow.tasks.artifact import Json
from trnflow.tasks.errors import CodeError, Interrupted
from trnflow.tasks.keys.hash_cache import stamp

# torch writes this module into a temporary folder, and imports it there: what is in it depends on torch's version alone.
OF_TORCH = "_remote_module_non_scriptable"


@dataclass(frozen=True)
class Permit:
    """A stage's permit. Paths are absolute; folders end with a separator.

    Attributes:
        roots: Checked folders as (folder, base); paths in messages are relative to `base`.
        files: Files that the key covers, and inputs.
        exempt: Folders below the roots that hold no code.
        code: {module's path: (stamp, code hash)} when the key was computed.
        elsewhere: Of a stage with own code, beginnings of the paths outside the roots that it may read; () permits all.
        held: Whether the kernel holds native readers in the processes of own code to the same, where it can.
    """

    stage: str
    roots: tuple[tuple[str, str], ...]
    files: frozenset[str]
    exempt: tuple[str, ...]
    code: dict[str, tuple[str, str]]
    elsewhere: tuple[str, ...] = ()
    held: bool = False

    def refused(self, path: str) -> str | None:
        """Return None if the stage may read the file at an absolute path, else its path relative to the project."""
        if path in self.files or path.startswith(self.exempt):
            return None
        for root, base in self.roots:
            if path.startswith(root):
                return None if _is_hidden(path[len(root) - 1 :]) or not os.path.isfile(path) else path[len(base) :]
        if not self.elsewhere or path.startswith(self.elsewhere) or not os.path.isfile(path):
            return None
        return path

    def edited(self, path: str) -> bool:
        """Return whether a module's code has changed since the key was computed; False for files not in `code`."""
        known = self.code.get(path)
        if known is None or stamp(path) == known[0]:
            return False
        from trnflow.tasks.keys.code_hash import hash_file

        return hash_file(Path(path)) != known[1]

    @classmethod
    def from_json(cls, document: Json) -> Permit:
        """Return the permit of its fields as JSON."""
        roots = tuple((root, base) for root, base in document["roots"])
        code = {path: (then, code_hash) for path, (then, code_hash) in document["code"].items()}
        files, elsewhere = frozenset(document["files"]), tuple(document["elsewhere"])
        return cls(document["stage"], roots, files, tuple(document["exempt"]), code, elsewhere, document["held"])

    def places(self) -> Iterator[str]:
        """Yield the files and folders that may be read; of hidden folders those at the top of a root or of the home."""
        yield from self.files
        yield from {os.path.join(os.path.dirname(file), "__pycache__") for file in self.files}
        for begin in (*self.exempt, *self.elsewhere, *(f"{root}." for root, _ in self.roots)):
            yield from glob(f"{escape(begin)}*") if begin.endswith(f"{os.sep}.") else (begin,)


class Witness:
    """Checks the files of one stage. violations: the errors raised so far."""

    def __init__(self, permit: Permit) -> None:
        self.permit = permit
        self.violations: list[CodeError] = []
        self._looking: set[int] = set()  # threads that are just reading a module to see whether it was edited

    def opened(self, path: Any) -> None:
        """Check a file that the process is about to open. Raises CodeError, and adds it to `violations`.

        path: text, bytes or a path object; descriptors are ignored.
        """
        source = _source(_absolute(path))
        name = self.permit.refused(source)
        # a traceback shows source lines of any module: showing them is no use of them
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
        """Check the file of a loaded module. Raises CodeError, and adds it to `violations`."""
        if module is sys.modules.get(OF_TORCH):
            return
        # sys.modules may hold objects that are no modules
        name = self.permit.refused(str(getattr(module, "__dict__", {}).get("__file__") or ""))
        if name is not None:
            self._refuse(_unknown(self.permit.stage, name))

    def _refuse(self, error: CodeError) -> None:
        self.violations.append(error)
        raise error

    def refuse_recorded(self) -> None:
        """Raise the first violation, even if the stage caught it."""
        if self.violations:
            raise self.violations[0]


def edited(stage: str, what: str) -> CodeError:
    """Return the error for a module that changed since the key was computed. what: its name or file."""
    return CodeError(
        f"{what} was edited while this run was going: what {stage} would run is not what its key says, so nothing is published",
        "run again (training goes on from its last checkpoint if you undo the edit)",
    )


@contextmanager
def watch_process(permit: Permit) -> Iterator[None]:
    """Check the files that this process reads in the context, and at its end all loaded modules.

    The process must have been started for this stage. Raises CodeError at the access and, if the stage caught it, at
    the end.
    """
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hook)
    witness = Witness(permit)
    _watching.append(witness)
    try:
        yield
        for module in list(sys.modules.values()):
            witness.used(module)
    except Interrupted:
        raise
    except Exception as error:
        if witness.violations and error is not witness.violations[0]:
            raise witness.violations[0] from error
        raise
    finally:
        _watching.remove(witness)
    witness.refuse_recorded()


def refuse_recorded() -> None:
    """Raise the first violation in this process, before a part is published."""
    for witness in _watching:
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
        f'declare it, @stage(..., assets=("{name}",)), or make it an input; what a hook needs stands in its modules or rows',
    )


# The audit hook. Python can't remove an audit hook: it is added when a stage begins, and does nothing after the stage.

_watching: list[Witness] = []
_installed: list[bool] = []


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


def _absolute(path: Any) -> str:
    """Return the path of an `open` event; "" for a descriptor."""
    if isinstance(path, int):
        return ""
    text = os.fsdecode(path)
    return text if text.startswith(os.sep) and ".." not in text else os.path.abspath(text)


def _is_hidden(path: str) -> bool:
    """Return whether a path goes through a folder such as .git, .venv and .trnflow."""
    return os.sep + "." in path or os.sep + "__pycache__" + os.sep in path


def _source(path: str) -> str:
    """Return the source file of a compiled module; any other path unchanged."""
    if path.endswith(".pyc"):
        with contextlib.suppress(ValueError, NotImplementedError):
            return source_from_cache(path)
    return path


def _is_traceback() -> bool:
    """Return whether linecache opens the file."""
    frame = sys._getframe(3)
    callers = (frame, frame.f_back)
    return any(caller is not None and caller.f_globals.get("__name__") == "linecache" for caller in callers)
