"""Mark a function as a stage.

    @stage(kind="tokens")
    def tokenize_text(config: TokenizeConfig, texts: Input, model: Source, out: Workdir) -> Meta: ...

It takes its config, its inputs (named so in the key) and a `Workdir`, writes files to `out.path` and returns metadata: the
artifact. The same config and inputs must give the same bytes.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, cast

from trnflow.tasks.artifact import Artifact, Json, Meta, Source
from trnflow.tasks.config import StageConfig, keyed_params
from trnflow.tasks.errors import CodeError

SCHEMA = 1

Role = Literal["rows", "texts", "tokens", "chunks", "reference", "graphs", "training", "model", "export", "evaluation"]
"""What a stage is for the parts of the program that ask for it, whatever it is called."""

Keyed = Mapping[str, "Artifact | Source"]
Arguments = ParamSpec("Arguments")


class Partial(Protocol):
    """The saved states of a stage's unfinished work, in the store's `partial/<key>/`.

    A state is a folder, such as a checkpoint, saved under a step that grows with the work. It is seen when it is
    complete.
    """

    def newest(self, warn: Callable[[str], None], upto: int | None = None) -> tuple[int, Path] | None:
        """Return (step, folder) of the newest complete, undamaged state, or None.

        warn: called for each damaged state; upto: remove states of higher steps.
        """

    def sound(self, step: int, warn: Callable[[str], None]) -> Path | None:
        """Return the folder of a step's state; None if it is missing, incomplete or damaged, for which `warn` is
        called."""

    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        """Save the files in `folder` as the state at `step`, by moving or copying them; readers see all or none.

        digests: {file name: `sha256:<hex>`} of files hashed already. After an OSError or StoreError, earlier states are
        unchanged.
        """

    def prune(self, keep: int, protect: Collection[int] = ()) -> None:
        """Remove saved states but those of the `keep` highest steps and of `protect`; with `keep` 0 all."""


@dataclass(frozen=True)
class Part:
    """One part of a stage's work, listed by its `split`.

    Attributes:
        identity: {"params", "inputs"}: with the stage's code and environment, the part's key document.
        arguments: Tells the stage's `part` which part to make.
    """

    identity: Meta
    arguments: Meta


class PartResult(NamedTuple):
    """The result of a part. folder: exists until the next result is read."""

    arguments: Meta
    folder: Path
    meta: Meta


class Parts:
    """The results of a stage's parts, in the order of `split`, made now, earlier or elsewhere. shared: the folder that
    `split` wrote."""

    def __init__(self, shared: Path, arguments: Sequence[Meta], results: Iterator[tuple[Path, Meta]]) -> None:
        self.shared = shared
        self._arguments = deque(arguments)
        self._results = results

    def of(self, **wanted: Json) -> Iterator[PartResult]:
        """Yield the next results as long as their arguments have the values in `wanted`, such as `split="train"`; the
        next call goes on from there."""
        while self._arguments and all(self._arguments[0][name] == value for name, value in wanted.items()):
            yield PartResult(self._arguments.popleft(), *next(self._results))


class Workdir:
    """The folders that a stage writes to, and its reports.

    What differs from run to run, such as seconds, is reported and is no metadata.

    Attributes:
        path: Becomes the artifact.
        scratch: For temporary files; removed afterwards.
        partial: Saved states to continue from, or None.
        emit: Called with each report as JSON.
    """

    def __init__(self, path: Path, scratch: Path, emit: Callable[[Meta], None], partial: Partial | None = None) -> None:
        self.path = path
        self.scratch = scratch
        self.partial = partial
        self.emit = emit
        self._shown = 0.0

    def progress(self, done: int, total: int, unit: str = "rows", **figures: Json) -> None:
        """Report that `done` of `total` units are finished; about ten reports a second are sent. figures: shown beside
        the bar."""
        now = time.monotonic()
        if done >= total or now - self._shown >= 0.1:
            self._shown = now
            self.emit({"progress": {"done": done, "total": total, "unit": unit, **figures}})

    def metrics(self, step: int, **values: float) -> None:
        """Report metrics at a training step, such as loss, learning_rate, grad_norm, tokens_per_second or eval_loss."""
        self.emit({"metrics": {"step": step, "time": time.time(), "values": values}})

    def saves(self) -> None:
        """Announce that this stage saves its state on SIGTERM: it gets `launch.grace_seconds` instead of a few."""
        self.emit({"saves": True})

    def figures(self, **values: Json) -> None:
        """Report what this run measured: seconds, samples_per_second, peak memory, dollars."""
        self.emit({"figures": values})

    def warn(self, text: str) -> None:
        """Report what the user should read, such as dropped rows."""
        self.emit({"warn": text})

    def info(self, text: str) -> None:
        """Report a message for the user that is no warning, such as a count."""
        self.emit({"info": text})


@dataclass(frozen=True)
class Known:
    """What is known of a run before a stage of it runs.

    Attributes:
        sources: By kind: `data`, `model`.
        meta: {role of a stage: metadata of its artifact; while there is none, what its `foresee` returns}.
        here: `launch.environment`, filled in, if the stages will run on this machine; else None.
    """

    sources: Mapping[str, Source]
    meta: dict[Role, Meta] = field(default_factory=dict)
    here: Mapping[str, str] | None = None

    def of(self, role: Role) -> Meta:
        return self.meta.get(role, {})


class Kept(NamedTuple):
    """What makes an input that a stage keeps.

    name: "module:function" of a stage function, which the stage's module does not import: the stage's process is then
    without its libraries; config: config of the stage that keeps what it makes -> its own, or None for no input; reads:
    inputs of that stage -> whether these have what it makes something of.
    """

    name: str
    config: Callable[[Any], StageConfig | None]
    reads: Callable[[Keyed], bool] = lambda inputs: True

    @property
    def function(self) -> Callable[..., Meta]:
        function: Callable[..., Meta] = _named(self.name)
        return function


def _named(name: str) -> Any:
    """Import what "module:function" names."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def parameters(function: Callable[..., Any]) -> set[str]:
    """Return the names of a stage function's inputs."""
    code = function.__code__
    return {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - {"config", "parts", "out"}


def identities(config: StageConfig, inputs: Keyed) -> Meta:
    """Return {input: digest of an artifact, or identity of a source}, the default for `inputs`."""
    return {name: item.digest if isinstance(item, Artifact) else item.identity for name, item in inputs.items()}


@dataclass(eq=False, kw_only=True)
class Stage:
    """The description of a stage, and the decorator that attaches it to the stage's function.

    `split` and `part`, of a stage that works in parts, get the inputs named among their parameters; its own function
    gets `parts`.

    Attributes:
        kind: Of its artifacts, such as "tokens".
        params: config -> the settings in its key.
        inputs: (config, inputs) -> JSON of the inputs in its key.
        accel: config -> JSON of device and compiler in its key; also the versions of the distributions under
        `versions`.
        environ: config -> environment variables of its process.
        assets: Files that it reads beside its code, hashed like code; relative to the folder of its top-level
        package.
        ranks: config -> number of processes; only the reports and result of rank 0 count.
        resumable: Whether it saves states in `out.partial`.
        split: `split(config, inputs..., out)` returns the parts, and writes what they share to `out.path`.
        part: `part(config, inputs..., shared, part, out)` makes one part and returns metadata.
        keep_parts: Whether each part is stored under a key of its own: worth it if making it takes longer than
        copying.
        kept: {parameter: what makes it}: inputs that it makes by functions of their own, each stored under a key of its
        own: what changes in this stage alone does not make them again.
        meta_only: Inputs of which it reads the metadata alone: their files are not fetched, and `Input.path` is empty.
        role: What others ask for it by; None for a stage that nothing asks for.
        aside: Names of inputs whose files aside it reads: its key counts them.
        resolve: "module:function" of (config, inputs) -> the config with what the inputs decide, such as `auto`; inputs that are
        not known yet are nodes. Keys hold its result, and not its code.
        plots: Whether its artifact has plots and pages, which MLflow shows.
        foresee: (config, known) -> what of its metadata is known before it runs. Raises a TrnflowError if it can't run.
        needs: (config, known) -> remarks for the user. Raises a TrnflowError if the stage is bound to fail. Asked of all
        stages before the first one runs, and after each one.
    """

    kind: str
    params: Callable[[Any], Meta] = keyed_params
    inputs: Callable[[Any, Keyed], Meta] = identities
    accel: Callable[[Any], Meta] = lambda config: {}
    environ: Callable[[Any], dict[str, str]] = lambda config: {}
    assets: tuple[str, ...] = ()
    ranks: Callable[[Any], int] = lambda config: 1
    resumable: bool = False
    split: Callable[..., list[Part]] | None = None
    part: Callable[..., Meta] | None = None
    keep_parts: bool = False
    kept: Mapping[str, Kept] = field(default_factory=dict)
    meta_only: tuple[str, ...] = ()
    role: Role | None = None
    aside: Collection[str] = ()
    resolve: str | None = None
    plots: bool = False
    foresee: Callable[[Any, Known], Meta] = lambda config, known: {}
    needs: Callable[[Any, Known], Iterable[str]] = lambda config, known: ()
    function: Callable[..., Meta] = field(init=False)

    def __call__(self, typed: Callable[Arguments, Mapping[str, Json]]) -> Callable[Arguments, Meta]:
        function = cast("Callable[Arguments, Meta]", typed)  # a TypedDict is a dict
        self.function = function
        function.stage = self  # type: ignore[attr-defined]
        return function

    @property
    def name(self) -> str:
        return self.function.__name__

    def resolved(self, config: Any, inputs: Mapping[str, Any]) -> Any:
        """Return the config with what `resolve` finds in the inputs."""
        return config if self.resolve is None else _named(self.resolve)(config, inputs)

    def with_kept(self, config: StageConfig) -> Iterator[tuple[Stage, StageConfig]]:
        """Yield the stage and what makes its kept inputs, each with its config."""
        yield self, config
        for kept in self.kept.values():
            if (theirs := kept.config(config)) is not None:
                yield stage_of(kept.function), theirs

    @property
    def takes(self) -> set[str]:
        """The names of the inputs that a graph gives it, those for `kept` included."""
        functions = (self.function, *(kept.function for kept in self.kept.values()))
        return {name for function in functions for name in parameters(function)} - {*self.kept}


stage = Stage


def stage_of(function: Callable[..., Meta]) -> Stage:
    """Return the `Stage` of a function. Raises TypeError if it is not decorated."""
    described = getattr(function, "stage", None)
    if not isinstance(described, Stage):
        raise TypeError(f"{function!r} is not a stage: decorate it with @stage")
    return described


def by_role(functions: Iterable[Callable[..., Meta]]) -> dict[Role, str]:
    """Return {role: name of the stage that has it}. Raises CodeError for two stages of one role."""
    holders: dict[Role, Stage] = {}
    for described in map(stage_of, functions):
        other = holders.setdefault(described.role, described) if described.role else described
        if other is not described:
            both = " and ".join(f"{code.co_filename}:{code.co_firstlineno}" for code in map(_code, (other, described)))
            raise CodeError(f"two stages have the role {described.role}: {both}", "take it from one of them")
    return {role: described.name for role, described in holders.items()}


def _code(described: Stage) -> CodeType:
    return described.function.__code__


def write_json(path: Path, document: Json) -> None:
    """Write JSON whose bytes depend on the document alone: sorted keys, no NaN."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def read_json(path: Path) -> Json:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
