"""A job spec: one stage function, with all it needs, as a JSON file.

It carries everything another process (or machine) needs to run a stage, as data: names of a function and of its config
class, the config's JSON, inputs and folders. Nothing is pickled and nothing travels as an argument. `JobSpec.of` fails
with TypeError when the function cannot be imported by name or the config does not survive the trip through JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.artifact import Input, Json, Meta, Source
from tasks.config import StageConfig
from tasks.witness import Permit

Inputs = Mapping[str, Input | Source]


@dataclass(frozen=True)
class JobSpec:
    """function, config_type: "module:name"; config: its JSON; inputs, after (order-only): by parameter name.

    out: the folder that becomes the artifact; scratch: removed afterwards by the caller; beside it stand this spec and
    the result. log: takes the process's stdout and stderr. partial: {"root", "home", "key"} of resumable state;
    environ: variables of the process; permit: what it may read of the project (None: not watched); search: folders put
    on its `sys.path`, where the function's package lies; ranks: processes that run it together.
    """

    function: str
    config_type: str
    config: Meta
    out: Path
    scratch: Path
    log: Path
    inputs: dict[str, Input | Source] = field(default_factory=dict)
    after: dict[str, Input | Source] = field(default_factory=dict)
    partial: dict[str, str] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    permit: Permit | None = None
    search: tuple[str, ...] = ()
    ranks: int = 1

    @classmethod
    def of(
        cls,
        function: Callable[..., Meta],
        config: StageConfig,
        inputs: Inputs,
        *,
        out: Path,
        scratch: Path,
        log: Path | None = None,
        after: Inputs | None = None,
        partial: dict[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        permit: Permit | None = None,
        ranks: int = 1,
    ) -> JobSpec:
        """The spec of `function(config, **inputs, **after, out=Workdir(...))`; log: else beside scratch."""
        return cls(
            function=name_of(function),
            config_type=name_of(type(config)),
            config=portable(config),
            out=out,
            scratch=scratch,
            log=log or scratch.with_name(f"{scratch.name}.log"),
            inputs=dict(inputs),
            after=dict(after or {}),
            partial=partial,
            environ=dict(environ or {}),
            permit=permit,
            search=_search(function),
            ranks=ranks,
        )

    @property
    def name(self) -> str:
        """The stage's name, for messages."""
        return self.function.rpartition(":")[2]

    @property
    def file(self) -> Path:
        return self.scratch.with_name(f"{self.scratch.name}.job.json")

    @property
    def result(self) -> Path:
        """Where the worker writes {"meta": ...} or {"error": ..., "details": traceback}."""
        return self.scratch.with_name(f"{self.scratch.name}.result.json")

    @property
    def ranks_folder(self) -> Path:
        """Where the ranks meet, and say what came of them."""
        return self.scratch.with_name(f"{self.scratch.name}.ranks")

    def save(self) -> None:
        """Write the spec to `file`, readable by its owner alone."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "function": self.function,
            "config_type": self.config_type,
            "config": self.config,
            "out": str(self.out),
            "scratch": str(self.scratch),
            "log": str(self.log),
            "inputs": {name: _encoded(item) for name, item in self.inputs.items()},
            "after": {name: _encoded(item) for name, item in self.after.items()},
            "partial": self.partial,
            "environ": self.environ,
            "permit": self.permit.to_json() if self.permit else None,
            "search": list(self.search),
            "ranks": self.ranks,
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
                "inputs": {name: _decoded(item) for name, item in document["inputs"].items()},
                "after": {name: _decoded(item) for name, item in document["after"].items()},
                "permit": Permit.from_json(document["permit"]) if document["permit"] else None,
                "search": tuple(document["search"]),
            }
        )


def resolve(name: str) -> Any:
    """The object called "module:name"."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def name_of(thing: Any) -> str:
    """`module:name`. TypeError for what can't be imported by it."""
    name = f"{thing.__module__}:{thing.__qualname__}"
    if thing.__module__ == "__main__" or getattr(sys.modules[thing.__module__], thing.__qualname__, None) is not thing:
        raise TypeError(f"{name} can't run in a process of its own: it is not at the top level of an importable module")
    return name


def portable(config: StageConfig) -> Meta:
    """The config as JSON. TypeError when it does not survive the trip."""
    document: Meta = config.model_dump(mode="json")
    if type(config).model_validate_json(json.dumps(document)) != config:
        raise TypeError(f"{type(config).__name__} changes when it is written as JSON and read again: {document}")
    return document


def _search(function: Callable[..., Meta]) -> tuple[str, ...]:
    package = sys.modules[function.__module__.partition(".")[0]]
    if package.__file__ is None:
        return tuple(str(Path(folder).parent) for folder in package.__path__)
    return (str(Path(package.__file__).parents[1 if hasattr(package, "__path__") else 0]),)


def _encoded(item: Input | Source) -> Json:
    if isinstance(item, Input):
        return {"is": "input", "path": str(item.path), "kind": item.kind, "meta": item.meta, "digest": item.digest}
    return {"is": "source", "kind": item.kind, "identity": item.identity, "location": item.location, "note": item.note}


def _decoded(document: Meta) -> Input | Source:
    fields = {name: value for name, value in document.items() if name != "is"}
    if document["is"] == "input":
        return Input(**{**fields, "path": Path(fields["path"])})
    return Source(**fields)
