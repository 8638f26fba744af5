"""Every error that is shown to a user. Each says what happened, where, and what to do.

exit: the exit code of the command. A stage's key is the hash of all that determines its result, such as settings,
inputs and code; a miss is a key that has no result in the store; a blob is a file in the store under its digest.

TrnflowError
├── ConfigError          a recipe, an override or a setting is wrong                     exit 2
├── DataError            a row, file, column or label is wrong                           exit 1
├── ModelError           a model, tokenizer or layout does not fit                       exit 1
├── CompileError         a graph that precompile did not list, or one that failed        exit 1
├── CodeError            a stage used code or a file that its key does not know          exit 1
├── NonFiniteLoss        the loss is NaN or infinite; the weights were not changed         exit 1
├── MissingDependency    an optional package or compiler is not installed                exit 1
├── ProcessFailed        a stage's process died without saying why                       exit 1
├── MachineError         a disk, a permission, memory or a limit of this machine         exit 1
├── StoreError           the store can't be read or written (never a miss)               exit 1
│   ├── BlobLost         a blob is missing or corrupt; its artifact is made again        exit 1
│   └── ReadOnlyStore    the store can only be read: results are found, none can be added                 exit 1
└── Interrupted          Ctrl-C or SIGTERM; partial training state is kept               exit 130
"""

from __future__ import annotations

import errno
import traceback
from pathlib import Path
from typing import Any, ClassVar

SCHEMA = 1


class TrnflowError(Exception):
    """The base class of all errors that are shown to the user.

    message: what happened, naming the file, row, setting or stage; fix: what the user can do about it. Attributes:
    `stage`, the stage in which it happened, set by the runner; `details`, a traceback from another process, shown with
    --debug; `exit_code`, the exit code of the command."""

    exit_code: ClassVar[int] = 1
    stage: str = ""
    details: str = ""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}. Fix: {self.fix}" if self.fix else self.message

    def to_json(self) -> dict[str, Any]:
        """Return {type, message, fix}, from which `from_json` makes the error again in another process."""
        return {"type": type(self).__name__, "message": self.message, "fix": self.fix}


class ConfigError(TrnflowError):
    exit_code = 2


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


class StoreError(TrnflowError):
    pass


class BlobLost(StoreError):
    """A blob (a file in the store, named by the digest of its bytes) is missing or corrupt. The default `fix` is to run
    the recipe again, which makes the lost artifact anew. digest: the blob's, `sha256:<hex>`; "" if it is not known."""

    def __init__(self, message: str, fix: str = "", digest: str = "") -> None:
        super().__init__(message, fix or "`trnflow run` makes anew what it belongs to")
        self.digest = digest


class ReadOnlyStore(StoreError):
    pass


class Interrupted(TrnflowError):
    exit_code = 130


def is_interruption(error: BaseException | None) -> bool:
    """Return whether an exception means that a person or a scheduler ended the work: Ctrl-C, SIGTERM, Prefect's
    TerminationSignal."""
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
    errno.EIO: ("the disk of {} failed to read or write", "check the disk and the system's log"),
    errno.EMFILE: ("too many files are open (at {})", "raise the limit: ulimit -n 4096"),
    errno.ENFILE: ("too many files are open on this machine (at {})", "end other programs, or raise fs.file-max"),
    errno.ENOMEM: ("there is no memory left (at {})", "end other programs, or take a machine with more memory"),
}
"""{errno: (what happened, the fix)}; `{}` stands for the path."""


def of_machine(error: BaseException) -> MachineError | None:
    """Return a MachineError with a message and a fix for an exception whose cause is this machine, such as a full disk or
    missing permission; None for any other exception, which may be a defect of this program."""
    if isinstance(error, MemoryError):
        return MachineError("there is no memory left", "end other programs, or take a machine with more memory")
    if not isinstance(error, OSError) or error.errno not in _CAUSES:
        return None
    what, fix = _CAUSES[error.errno]
    return MachineError(what.format(error.filename or "a file that the system does not name"), fix)


def unexpected(error: Exception) -> TrnflowError:
    """Turn any exception into an error for the user: a MachineError if the cause is this machine, else a ProcessFailed
    that asks to report a defect of this program."""
    return of_machine(error) or ProcessFailed(
        f"unexpected {type(error).__name__}{_place(error)}: {error}", "run it again with --debug and report it"
    )


def _place(error: Exception) -> str:
    """Return the file and line where an error was raised, so that a defect can be reported even if it does not happen
    again."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def from_json(document: dict[str, Any]) -> TrnflowError:
    """Return the error that another process wrote with `TrnflowError.to_json`. An error of an unknown type becomes a
    ProcessFailed."""
    kinds: dict[str, type[TrnflowError]] = {"TrnflowError": TrnflowError}
    pending = [TrnflowError]
    while pending:
        for kind in pending.pop().__subclasses__():
            kinds[kind.__name__] = kind
            pending.append(kind)
    return kinds.get(document["type"], ProcessFailed)(document["message"], document.get("fix", ""))
