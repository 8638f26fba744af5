"""Every error that is shown to a user, with what to do.

TrnflowError
├── ConfigError          a recipe, an override or a setting is wrong                     exit 2
│   └── DamagedFormat    a store's FORMAT.json is damaged                                exit 2
├── DataError            a row, file, column or label is wrong                           exit 1
├── ModelError           a model, tokenizer or layout does not fit                       exit 1
├── CompileError         a graph that precompile did not list, or one that failed        exit 1
├── CodeError            a stage used code or a file that its key does not know          exit 1
├── NonFiniteLoss        the loss is NaN or infinite; the weights were not changed       exit 1
├── MissingDependency    an optional package or compiler is not installed                exit 1
├── ProcessFailed        a stage's process died without saying why                       exit 1
├── MachineError         a disk, a permission, memory or a limit of this machine         exit 1
│   └── HomeRemoved      the home was removed in mid-run                                 exit 1
├── StoreError           the store can't be read or written (never a miss)               exit 1
│   ├── BlobLost         a blob is missing or corrupt; its artifact is made again        exit 1
│   └── ReadOnlyStore    results are found, none can be added                            exit 1
└── Interrupted          Ctrl-C or SIGTERM; partial training state is kept               exit 130
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypedDict

SCHEMA = 1


class ErrorDocument(TypedDict):
    type: str
    message: str
    fix: str


class PlacedError(ErrorDocument):
    """stage: None outside one."""

    stage: str | None


class TrnflowError(Exception):
    """The base class.

    Attributes:
        message: What happened, naming file, row, setting or stage.
        fix: What to do.
        stage: Set by the runner.
        details: Another process's traceback, shown with --debug.
    """

    exit_code: ClassVar[int] = 1
    stage: str = ""
    details: str = ""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}. Fix: {self.fix}" if self.fix else self.message

    def to_json(self) -> ErrorDocument:
        return {"type": type(self).__name__, "message": self.message, "fix": self.fix}

    def placed(self) -> PlacedError:
        return {"stage": self.stage or None, **self.to_json()}


class ConfigError(TrnflowError):
    exit_code = 2


class DamagedFormat(ConfigError):
    pass


class DataError(TrnflowError):
    pass


class ModelError(TrnflowError):
    pass


class CompileError(TrnflowError):
    pass


class CodeError(TrnflowError):
    pass


class NonFiniteLoss(TrnflowError):
    pass


class MissingDependency(TrnflowError):
    pass


class ProcessFailed(TrnflowError):
    pass


class MachineError(TrnflowError):
    pass


class HomeRemoved(MachineError):
    pass


class StoreError(TrnflowError):
    pass


class BlobLost(StoreError):
    """A blob is missing or corrupt. digest: "" if unknown."""

    def __init__(self, message: str, fix: str = "", digest: str = "") -> None:
        super().__init__(message, fix or "`trnflow run` makes anew what it belongs to")
        self.digest = digest


class ReadOnlyStore(StoreError):
    pass


class Interrupted(TrnflowError):
    exit_code = 130


class Terminated(KeyboardInterrupt):
    """SIGTERM: the work ends as after Ctrl-C, but a repeated one is no wish to leave without saving."""


def is_interruption(error: BaseException | None) -> bool:
    """Return whether Ctrl-C, SIGTERM or Prefect's TerminationSignal ended the work."""
    # Prefect's TerminationSignal is a BaseException, as KeyboardInterrupt is
    return error is not None and (isinstance(error, Interrupted) or not isinstance(error, Exception))


_ELSEWHERE = "set TRNFLOW_HOME (or TRNFLOW_STORE, for the store) to a folder of yours"

_CAUSES = {
    errno.EACCES: ("there is no permission for {}", f"check its owner and mode, or {_ELSEWHERE}"),
    errno.EPERM: ("there is no permission for {}", f"check its owner and mode, or {_ELSEWHERE}"),
    errno.EROFS: ("{} is on a disk that can only be read", _ELSEWHERE),
    errno.ENOTDIR: ("{} can't be: a part of its path is a file", _ELSEWHERE),
    errno.EEXIST: ("{} is in the way, where something else is to be made", f"move it, or {_ELSEWHERE}"),
    errno.ENOSPC: ("the disk of {} is full", f"free some space, or {_ELSEWHERE}; what is finished stays"),
    errno.EDQUOT: (
        "the quota of the disk of {} is used up",
        f"free some space, or {_ELSEWHERE}; what is finished stays",
    ),
    errno.EFBIG: ("File too large: {} would pass the limit of a file's size", f"raise it (ulimit -f), or {_ELSEWHERE}"),
    errno.EIO: ("the disk of {} failed to read or write", "check the disk and the system's log"),
    errno.EMFILE: ("too many files are open (at {})", "raise the limit: ulimit -n 4096"),
    errno.ENFILE: ("too many files are open on this machine (at {})", "end other programs, or raise fs.file-max"),
    errno.ENOMEM: ("there is no memory left (at {})", "end other programs, or take a machine with more memory"),
}
"""{errno: (what happened, fix)}; `{}` stands for the path."""


def of_machine(error: BaseException) -> MachineError | None:
    """Return a MachineError if this machine caused `error`, such as a full disk; else None."""
    if isinstance(error, MemoryError):
        return MachineError("there is no memory left", "end other programs, or take a machine with more memory")
    if not isinstance(error, OSError) or error.errno not in _CAUSES:
        return None
    what, fix = _CAUSES[error.errno]
    return MachineError(what.format(error.filename or "a file that the system does not name"), fix)


def unexpected(error: Exception) -> TrnflowError:
    """Return any exception as a TrnflowError: itself, a MachineError, or a ProcessFailed that asks for a report."""
    if isinstance(error, TrnflowError):
        return error
    return of_machine(error) or ProcessFailed(
        f"unexpected {type(error).__name__}{_place(error)}: {error}", "run it again with --debug and report it"
    )


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def from_json(document: Mapping[str, Any]) -> TrnflowError:
    """Return the error that `to_json` wrote; a ProcessFailed if its type is unknown."""
    kinds: dict[str, type[TrnflowError]] = {"TrnflowError": TrnflowError}
    pending = [TrnflowError]
    while pending:
        for kind in pending.pop().__subclasses__():
            kinds[kind.__name__] = kind
            pending.append(kind)
    return kinds.get(document["type"], ProcessFailed)(document["message"], document.get("fix", ""))
