"""A call: all that a process needs to run a stage or a part of it, as JSON. Nothing is pickled."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from trnflow.tasks.artifact import Input, Json, Meta, Source
from trnflow.tasks.config import StageConfig, sorted_tables
from trnflow.tasks.documents import KeyDocument
from trnflow.tasks.keys.file_audit import Permit
from trnflow.tasks.launch import GRACE_SECONDS
from trnflow.tasks.system.redaction import scrub

Inputs = Mapping[str, Input | Source]
NOTHING: Input[Meta] = Input(Path(), "", {}, "")


@dataclass(frozen=True)
class Phase:
    """What a process does of a stage that works in parts.

    Attributes:
        name: `whole`, `split` (list the parts), `part` (make one) or `gather` (make missing parts, put all together).
        shared: What `split` wrote.
        arguments: Which part.
        todo: (arguments, metadata or None if it is missing) of each part.
        folder: Its subfolder `N` has the result of part N.
        keep: Copy each part that is made to `N.kept`, and report it.
        threads: That make parts.
        replace: Whether the part replaces the one that its key has on record.
    """

    name: str = "whole"
    shared: Input[Meta] = NOTHING
    arguments: Meta = field(default_factory=dict)
    todo: list[tuple[Meta, Meta | None]] = field(default_factory=list)
    folder: str = ""
    keep: bool = False
    threads: int = 1
    replace: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a stage function in a process of its own.

    Attributes:
        function, config_type: As "module:name".
        out: The folder of the stage's files; call, result and temporary files lie beside it.
        log: Takes the process's stdout and stderr.
        document: The key document; empty outside a run.
        root, home: Of the store; empty: the stage saves no state.
        environ: Environment variables; not in the JSON.
        secret: Names in `environ` whose values are secrets.
        permit: None: reads are not checked.
        search: Folders to put on `sys.path`.
        ranks: Processes that run the stage together.
        preload: Modules of the warm parent that forks the process; empty: a new interpreter. Not in the JSON.
        grace_seconds: Between SIGTERM and SIGKILL.
        memory_gib: What all its processes may hold; None: what the machine can spare.
        seconds: After which the guard ends it; None: it may take any time.
    """

    function: str
    config_type: str
    config: Meta
    inputs: dict[str, Input | Source]
    out: Path
    log: Path
    document: KeyDocument = field(default_factory=lambda: cast(KeyDocument, {}))
    attempt: str = ""
    root: str = ""
    home: str = ""
    environ: dict[str, str] = field(default_factory=dict, compare=False)
    secret: tuple[str, ...] = ()
    permit: Permit | None = None
    search: tuple[str, ...] = ()
    ranks: int = 1
    preload: tuple[str, ...] = field(default=(), compare=False)
    grace_seconds: float = GRACE_SECONDS
    memory_gib: float | None = None
    seconds: float | None = None
    phase: Phase = Phase()

    @classmethod
    def of(
        cls,
        function: Callable[..., Meta],
        config: StageConfig,
        inputs: Inputs,
        out: Path,
        *,
        log: Path | None = None,
        **others: Any,
    ) -> Call:
        """Make the call `function(config, **inputs, out=Workdir(...))`. others: further attributes.

        Raises TypeError if the function can't be imported by name, or the config changes when it is written and read
        again.
        """
        names, document = (name_of(function), name_of(type(config))), _portable(config)
        log = log or out.with_name(f"{out.name}.log")
        return cls(*names, document, dict(inputs), out, log, search=_search(function), **others)

    @property
    def name(self) -> str:
        """The name of the stage function."""
        return self.function.rpartition(":")[2]

    @property
    def scratch(self) -> Path:
        """A folder for temporary files."""
        return self._beside("scratch")

    @property
    def file(self) -> Path:
        return self._beside("call.json")

    @property
    def result(self) -> Path:
        """The worker's result: {"meta": metadata} or {"error": error, "details": traceback}."""
        return self._beside("result.json")

    @property
    def ranks_folder(self) -> Path:
        """Where ranks find each other, and write their results."""
        return self._beside("ranks")

    def _beside(self, suffix: str) -> Path:
        return self.out.with_name(f"{self.out.name}.{suffix}")

    def to_json(self) -> Meta:
        document: Meta = json.loads(self._text())
        return document

    def _text(self, **changed: str) -> str:
        fields = {name: value for name, value in vars(self).items() if name not in ("environ", "preload")}
        return json.dumps(fields | changed, default=_json)

    @classmethod
    def from_json(cls, document: Meta) -> Call:
        phase, permit = document["phase"], document["permit"]
        return cls(**{
            **document,
            **{name: Path(document[name]) for name in ("out", "log")},
            **{name: tuple(document[name]) for name in ("secret", "search")},
            "inputs": {name: _input(given) for name, given in document["inputs"].items()},
            "permit": Permit.from_json(permit) if permit else None,
            "phase": Phase(**{**phase, "shared": _input(phase["shared"])}),
        })  # fmt: skip

    def save(self) -> None:
        """Write the file, readable by its owner alone, and without secrets of the store's root."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.touch(mode=0o600)
        self.file.write_text(self._text(root=scrub(self.root)), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Call:
        return cls.from_json(json.loads(file.read_text(encoding="utf-8")))


def resolve(name: str) -> Any:
    """Import the object named "module:name"."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def name_of(thing: Any) -> str:
    """Return "module:name" of a function or class. Raises TypeError if it can't be imported by this name."""
    name = f"{thing.__module__}:{thing.__qualname__}"
    if thing.__module__ == "__main__" or getattr(sys.modules[thing.__module__], thing.__qualname__, None) is not thing:
        raise TypeError(f"{name} can't run in a process of its own: it is not at the top level of an importable module")
    return name


def _portable(config: StageConfig) -> Meta:
    """Return a config as JSON. Raises TypeError if the config read from it differs."""
    document = sorted_tables(config)
    if type(config).model_validate_json(json.dumps(document)) != config:
        raise TypeError(f"{type(config).__name__} changes when it is written as JSON and read again: {document}")
    return document


def _search(function: Callable[..., Meta]) -> tuple[str, ...]:
    package = sys.modules[function.__module__.partition(".")[0]]
    if package.__file__ is None:
        return tuple(str(Path(folder).parent) for folder in package.__path__)
    return (str(Path(package.__file__).parents[1 if hasattr(package, "__path__") else 0]),)


def _json(value: Any) -> Json:
    """Return a path, a set or a dataclass as JSON."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    # sorted, as in the store: a stage's files must not depend on whether the same command made its inputs
    return json.loads(json.dumps(vars(value), default=_json, sort_keys=True))


def _input(document: Meta) -> Input | Source:
    return Input(**{**document, "path": Path(document["path"])}) if "path" in document else Source(**document)
