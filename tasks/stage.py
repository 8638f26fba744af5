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
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tasks.artifact import Artifact, Input, Json, Meta, Source
from tasks.config import StageConfig, keyed_params

SCHEMA = 1

Keyed = Mapping[str, "Artifact | Source"]
Function = TypeVar("Function", bound=Callable[..., Meta])


class Partial(Protocol):
    """Resumable state of one key, `<root>/partial/<key>/`: complete steps only, the newest wins."""

    def newest(self, warn: Callable[[str], None]) -> tuple[int, Path] | None:
        """(step, folder) of the newest complete and undamaged step, or None; `warn` hears of damaged ones."""

    def sound(self, step: int, warn: Callable[[str], None]) -> Path | None:
        """The folder of one complete and undamaged step, or None; `warn` hears when it is damaged."""

    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        """Publish `folder` (moved or copied) as `step`; readers see all of it or nothing. digests: `sha256:<hex>` of those files
        that were hashed as they were written. OSError or StoreError when there is no room for it, say: nothing of it stays, and
        the other steps are as they were."""

    def prune(self, keep: int, protect: Collection[int] = ()) -> None:
        """Remove all but the newest `keep` complete steps and those of `protect`; with `keep` 0, all."""


@dataclass(frozen=True)
class Part:
    """A part of a stage's work. identity: `params` and `inputs`, JSON: with the stage's code and environment, all that the
    result depends on; arguments: JSON that tells the worker which part it is."""

    identity: Meta
    arguments: Meta


class Parts(Protocol):
    """Who does the parts of a stage's work; see `Workdir.share` and `Workdir.parts`."""

    def share(self, folder: Path, kind: str) -> Input: ...

    def map(
        self,
        make: Callable[..., Meta],
        config: StageConfig,
        inputs: Mapping[str, Input],
        parts: Iterable[Part],
        *,
        keep: bool,
    ) -> Iterator[tuple[Path, Meta]]: ...


class Workdir:
    """A stage's output folder and its voice.

    path: what is written here becomes the artifact; scratch: removed afterwards; partial: resumable training state; parts:
    who does parts of the work, and keeps them.
    Everything said goes to `emit` as one JSON object; what varies from run to run belongs here, not in the metadata.
    """

    def __init__(
        self,
        path: Path,
        scratch: Path,
        emit: Callable[[Meta], None],
        partial: Partial | None = None,
        parts: Parts | None = None,
    ) -> None:
        self.path = path
        self.scratch = scratch
        self.partial = partial
        self._emit = emit
        self._parts = parts
        self._shown = 0.0

    def share(self, folder: Path, kind: str) -> Input:
        """What this stage has made so far, as an input of its parts, wherever they are made."""
        return self._parts.share(folder, kind) if self._parts else Input(folder, kind, {}, "")

    def parts(
        self,
        make: Callable[..., Meta],
        config: StageConfig,
        inputs: Mapping[str, Input],
        parts: Iterable[Part],
        *,
        keep: bool = False,
    ) -> Generator[tuple[Path, Meta]]:
        """(folder, meta) of each part, in order: what `make(config, **inputs, part=part.arguments, out=Workdir(...))`, a
        function of the stage's module, wrote and returned: now or in an earlier run, in this process or in another.

        Whether it was made before, and where, must not show in what the stage makes. A folder stands until the next is
        asked for. keep: as shards of the store, for later runs; for work that takes longer than copying what comes of it."""
        if self._parts is not None:
            yield from self._parts.map(make, config, inputs, parts, keep=keep)
            return
        for part in parts:
            folder = self.scratch / "part"
            shutil.rmtree(folder, ignore_errors=True)
            yield folder, make_part(make, config, inputs, part.arguments, folder, self._emit)

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


def make_part(
    make: Callable[..., Meta],
    config: StageConfig,
    inputs: Mapping[str, Input],
    arguments: Meta,
    folder: Path,
    emit: Callable[[Meta], None],
) -> Meta:
    """Do one part in a new folder; its scratch is gone afterwards. Returns its metadata."""
    scratch = folder.with_name(f"{folder.name}.scratch")
    folder.mkdir(parents=True)
    scratch.mkdir()
    try:
        return make(config, **inputs, part=arguments, out=Workdir(folder, scratch, emit))
    finally:
        shutil.rmtree(scratch)


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
