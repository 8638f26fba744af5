"""A job, as the JSON file by which one process tells another which stage function to call. Nothing is pickled."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Input, Json, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.keys.file_audit import Permit

Inputs = Mapping[str, Input | Source]


@dataclass(frozen=True)
class Step:
    """One step of a stage that works in parts.

    Attributes:
        name: `whole`, `split` (list the parts), `part` (make one) or `gather` (make missing parts, put all together).
        shared: The folder that `split` wrote.
        arguments: Which part.
        todo: (arguments, metadata or None if it is missing) of each part.
        folder: Its subfolder `N` has the result of part N.
        keep: Copy each part that is made to `N.kept`, and report it.
    """

    name: str = "whole"
    shared: str = ""
    arguments: Meta = field(default_factory=dict)
    todo: tuple[tuple[Meta, Meta | None], ...] = ()
    folder: str = ""
    keep: bool = False
    threads: int = 1


@dataclass(frozen=True)
class JobSpec:
    """All that a process needs to call a stage function.

    Attributes:
        function, config_type: As "module:name".
        out: The folder of the stage's files.
        scratch: A folder for temporary files; spec and result lie beside it.
        log: Takes the process's stdout and stderr.
        partial: {"root", "home", "key"} of a resumable stage's state, else None.
        environ: Environment variables; not in the file.
        secret: Names in `environ` whose values are secrets.
        permit: None: reads are not checked.
        search: Folders to put on `sys.path`.
        ranks: Processes that run the stage together.
        preload: Modules of the warm parent that forks the process; empty: a new interpreter.
    """

    function: str
    config_type: str
    config: Meta
    out: Path
    scratch: Path
    log: Path
    inputs: dict[str, Input | Source] = field(default_factory=dict)
    partial: dict[str, str] | None = None
    environ: dict[str, str] = field(default_factory=dict, compare=False)
    secret: tuple[str, ...] = ()
    permit: Permit | None = None
    search: tuple[str, ...] = ()
    ranks: int = 1
    preload: tuple[str, ...] = field(default=(), compare=False)
    step: Step = Step()

    @classmethod
    def of(
        cls,
        function: Callable[..., Meta],
        config: StageConfig,
        inputs: Inputs,
        *,
        scratch: Path,
        log: Path | None = None,
        **others: Any,
    ) -> JobSpec:
        """Make the job of the call `function(config, **inputs, out=Workdir(...))`. others: further attributes.

        Raises TypeError if the function can't be imported by name, or the config changes when it is written and read
        again.
        """
        return cls(
            function=name_of(function),
            config_type=name_of(type(config)),
            config=portable(config),
            scratch=scratch,
            log=log or scratch.with_name(f"{scratch.name}.log"),
            inputs=dict(inputs),
            search=_search(function),
            **others,
        )

    @property
    def name(self) -> str:
        """The name of the stage function."""
        return self.function.rpartition(":")[2]

    @property
    def file(self) -> Path:
        return self.scratch.with_name(f"{self.scratch.name}.job.json")

    @property
    def result(self) -> Path:
        """The worker's result: {"meta": metadata} or {"error": error, "details": traceback}."""
        return self.scratch.with_name(f"{self.scratch.name}.result.json")

    @property
    def ranks_folder(self) -> Path:
        """Where ranks find each other, and write their results."""
        return self.scratch.with_name(f"{self.scratch.name}.ranks")

    def save(self) -> None:
        """Write the file, readable by its owner alone."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "function": self.function,
            "config_type": self.config_type,
            "config": self.config,
            "out": str(self.out),
            "scratch": str(self.scratch),
            "log": str(self.log),
            "inputs": {name: _encoded(given) for name, given in self.inputs.items()},
            "partial": self.partial,
            "secret": list(self.secret),
            "permit": self.permit.to_json() if self.permit else None,
            "search": list(self.search),
            "ranks": self.ranks,
            "step": asdict(self.step),
        }
        self.file.touch(mode=0o600)
        self.file.write_text(json.dumps(document, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> JobSpec:
        document = json.loads(file.read_text(encoding="utf-8"))
        return cls(
            **{
                **document,
                "out": Path(document["out"]),
                "scratch": Path(document["scratch"]),
                "log": Path(document["log"]),
                "inputs": {name: _decoded(given) for name, given in document["inputs"].items()},
                "permit": Permit.from_json(document["permit"]) if document["permit"] else None,
                "search": tuple(document["search"]),
                "secret": tuple(document["secret"]),
                "step": Step(**{**document["step"], "todo": tuple(map(tuple, document["step"]["todo"]))}),
            }
        )


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


def portable(config: StageConfig) -> Meta:
    """Return a config as JSON. Raises TypeError if the config read from it differs."""
    document: Meta = config.model_dump(mode="json")
    if type(config).model_validate_json(json.dumps(document)) != config:
        raise TypeError(f"{type(config).__name__} changes when it is written as JSON and read again: {document}")
    return document


def _search(function: Callable[..., Meta]) -> tuple[str, ...]:
    package = sys.modules[function.__module__.partition(".")[0]]
    if package.__file__ is None:
        return tuple(str(Path(folder).parent) for folder in package.__path__)
    return (str(Path(package.__file__).parents[1 if hasattr(package, "__path__") else 0]),)


def _encoded(given: Input | Source) -> Json:
    if isinstance(given, Input):
        return {"is": "input", "path": str(given.path), "kind": given.kind, "meta": given.meta, "digest": given.digest}
    return {
        "is": "source",
        "kind": given.kind,
        "identity": given.identity,
        "location": given.location,
        "note": given.note,
    }


def _decoded(document: Meta) -> Input | Source:
    fields = {name: value for name, value in document.items() if name != "is"}
    if document["is"] == "input":
        return Input(**{**fields, "path": Path(fields["path"])})
    return Source(**fields)
