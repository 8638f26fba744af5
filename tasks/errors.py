"""Every error a user can meet, each with what happened, where, and what to do.

TrnflowError
├── ConfigError          a recipe, an override or a setting is wrong                     exit 2
├── DataError            a row, file, column or label is wrong                           exit 1
├── ModelError           a model, tokenizer or layout does not fit                       exit 1
├── CompileError         a graph that precompile did not list, or one that failed        exit 1
├── CodeError            a stage used code or a file that its key does not know          exit 1
├── NonFiniteLoss        the loss left the numbers; the weights were not touched         exit 1
├── MissingDependency    an optional package or compiler is not installed                exit 1
├── ProcessFailed        a stage's process died without saying why                       exit 1
├── StoreError           the store can't be read or written (never a miss)               exit 1
│   ├── BlobLost         a blob is missing or corrupt; what needs it is made anew        exit 1
│   └── ReadOnlyStore    what is on record is used, nothing can be added                 exit 1
└── Interrupted          Ctrl-C or SIGTERM; partial training state is kept               exit 130
"""

from __future__ import annotations

from typing import Any, ClassVar

SCHEMA = 1


class TrnflowError(Exception):
    """message: what happened, naming the file, row, setting or stage; fix: what to do about it.

    stage: set by the runner; details: a traceback from another process, shown with --debug.
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

    def to_json(self) -> dict[str, Any]:
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


class StoreError(TrnflowError):
    pass


class BlobLost(StoreError):
    """digest: the blob's, `sha256:<hex>`."""

    def __init__(self, message: str, fix: str = "", digest: str = "") -> None:
        super().__init__(message, fix or "`trnflow run` makes anew what it belongs to")
        self.digest = digest


class ReadOnlyStore(StoreError):
    pass


class Interrupted(TrnflowError):
    exit_code = 130


def from_json(document: dict[str, Any]) -> TrnflowError:
    """The error another process wrote with `to_json`; an unknown type becomes ProcessFailed."""
    kinds: dict[str, type[TrnflowError]] = {"TrnflowError": TrnflowError}
    pending = [TrnflowError]
    while pending:
        for kind in pending.pop().__subclasses__():
            kinds[kind.__name__] = kind
            pending.append(kind)
    return kinds.get(document["type"], ProcessFailed)(document["message"], document.get("fix", ""))
