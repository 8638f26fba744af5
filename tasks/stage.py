"""What makes a function a stage: its name, what it makes, what its key is made of, and where it runs.

    @stage(kind="tokens")
    def tokenize_text(config: TokenizeConfig, texts: Input, model: Source, out: Workdir) -> Meta: ...

The function takes its config, then its inputs, then a `Workdir`. It writes its files below `out.path` and returns the
artifact's metadata. It is deterministic: run twice, same bytes. Parameter names are the names of the inputs in the key.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tasks.artifact import Artifact, Json, Meta, Source
from tasks.config import StageConfig, keyed_params

SCHEMA = 1

Keyed = Mapping[str, "Artifact | Source"]
Function = TypeVar("Function", bound=Callable[..., Meta])


class Partial(Protocol):
    """Resumable state of one key, `<root>/partial/<key>/`: complete steps only, the newest wins."""

    def newest(self, warn: Callable[[str], None]) -> tuple[int, Path] | None:
        """(step, folder) of the newest complete and undamaged step, or None; `warn` hears of damaged ones."""

    def commit(self, step: int, folder: Path) -> None:
        """Publish `folder` (moved or copied) as `step`; readers see all of it or nothing."""

    def prune(self, keep: int) -> None:
        """Remove all but the newest `keep` complete steps."""


class Shards(Protocol):
    """Where the runner keeps what `Workdir.shard` makes."""

    def __call__(self, identity: Meta, make: Callable[[Path], Meta]) -> tuple[Path, Meta]: ...


class Workdir:
    """A stage's output folder and its voice.

    path: what is written here becomes the artifact; scratch: removed afterwards; partial: resumable training state; shards:
    where parts of the work are kept by themselves.
    Everything said goes to `emit` as one JSON object; what varies from run to run belongs here, not in the metadata.
    """

    def __init__(
        self,
        path: Path,
        scratch: Path,
        emit: Callable[[Meta], None],
        partial: Partial | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.path = path
        self.scratch = scratch
        self.partial = partial
        self._emit = emit
        self._shards = shards
        self._shown = 0.0

    def shard(self, identity: Meta, make: Callable[[Path], Meta]) -> tuple[Path, Meta]:
        """(folder, meta) of a part of the work: what `make` wrote into an empty folder and returned, now or in an earlier run.

        identity: `params` and `inputs`, JSON: with the stage's code and environment, all that the result depends on. Whether
        it was made before must not show in what the stage makes. The folder stands until the next shard is asked for."""
        if self._shards is not None:
            return self._shards(identity, make)
        folder = self.scratch / "shard"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder, make(folder)

    def progress(self, done: int, total: int, unit: str = "rows", **figures: Json) -> None:
        """`done` of `total` units; figures such as loss stand beside the bar. Cheap: at most ten a second are sent."""
        now = time.monotonic()
        if done >= total or now - self._shown >= 0.1:
            self._shown = now
            self._emit({"progress": {"done": done, "total": total, "unit": unit, **figures}})

    def metrics(self, step: int, **values: float) -> None:
        """Values at a step (a curve): loss, learning_rate, grad_norm, tokens_per_second, eval_loss ..."""
        self._emit({"metrics": {"step": step, "time": time.time(), "values": values}})

    def figures(self, **values: Json) -> None:
        """What this run cost or reached, varying from run to run: seconds, samples_per_second, peak memory, dollars."""
        self._emit({"figures": values})

    def warn(self, text: str) -> None:
        """A line the user should read: rows dropped, a fallback taken."""
        self._emit({"warn": text})

    def info(self, text: str) -> None:
        self._emit({"info": text})


@dataclass(frozen=True)
class Stage:
    """name: the function's; kind: of its artifact; params, inputs, accel: the parts of its key, from config and inputs
    (a list under accel's `versions` names distributions, of which the key takes the versions);
    process: whether it runs in a process of its own (all that import torch do); environ: that process's variables;
    assets: files it reads beside the code (templates), hashed like code: paths from the folder that holds its package;
    ranks: how many processes run it together, each called with the same (rank 0 speaks, and what it returns counts)."""

    name: str
    kind: str
    function: Callable[..., Meta]
    params: Callable[[Any], Meta]
    inputs: Callable[[Any, Keyed], Meta]
    accel: Callable[[Any], Meta]
    process: bool
    environ: Callable[[Any], dict[str, str]]
    assets: tuple[str, ...] = ()
    ranks: Callable[[Any], int] = lambda config: 1


def identities(config: StageConfig, inputs: Keyed) -> Meta:
    """The usual input part of a key: artifacts by digest, sources by identity."""
    return {name: item.digest if isinstance(item, Artifact) else item.identity for name, item in inputs.items()}


def stage(
    *,
    kind: str,
    process: bool = False,
    params: Callable[[Any], Meta] = keyed_params,
    inputs: Callable[[Any, Keyed], Meta] = identities,
    accel: Callable[[Any], Meta] = lambda config: {},
    environ: Callable[[Any], dict[str, str]] = lambda config: {},
    assets: tuple[str, ...] = (),
    ranks: Callable[[Any], int] = lambda config: 1,
) -> Callable[[Function], Function]:
    """Mark a function as a stage; the description is its attribute `stage` (see `of`)."""

    def mark(function: Function) -> Function:
        described = Stage(function.__name__, kind, function, params, inputs, accel, process, environ, assets, ranks)
        function.stage = described  # type: ignore[attr-defined]
        return function

    return mark


def of(function: Callable[..., Meta]) -> Stage:
    """The description `@stage` left on a function."""
    described = getattr(function, "stage", None)
    if not isinstance(described, Stage):
        raise TypeError(f"{function!r} is not a stage: decorate it with @stage")
    return described


def write_json(path: Path, document: Json) -> None:
    """Deterministic JSON, for files inside artifacts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def read_json(path: Path) -> Json:
    return json.loads(path.read_text(encoding="utf-8"))
