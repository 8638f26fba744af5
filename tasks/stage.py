"""Mark a function as a stage: the decorator `stage`, the description `Stage` that it attaches, and the `Workdir` that
a stage writes to.

    @stage(kind="tokens")
    def tokenize_text(config: TokenizeConfig, texts: Input, model: Source, out: Workdir) -> Meta: ...

The function takes its config, then its inputs, then a `Workdir`. It writes its files to `out.path` and returns
metadata; files and metadata become an artifact in the store. The function must be deterministic: the same config and
inputs give the same bytes. Its parameter names are the names of the inputs in the stage's key. The key is the hash of
all that determines the result; the store finds the artifact under it.

A stage may do its work in parts: pieces, such as blocks of rows, that several processes can make independently.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from trnflow.tasks.artifact import Artifact, Json, Meta, Source
from trnflow.tasks.config import StageConfig, keyed_params

SCHEMA = 1

Keyed = Mapping[str, "Artifact | Source"]
Function = TypeVar("Function", bound=Callable[..., Meta])


class Partial(Protocol):
    """The saved states of a stage's unfinished work on one artifact. A later run continues the work from a saved
    state. The states are kept in the store's folder `partial/<key>/`; the key is the hash of all that determines the
    artifact.

    A state is a folder of files, such as a training checkpoint. It is saved under a step: a number that grows with the
    work, such as the number of optimizer updates. A state can be read only after all its files have been written.
    """

    def newest(self, warn: Callable[[str], None], upto: int | None = None) -> tuple[int, Path] | None:
        """Return (step, folder) of the saved state with the highest step, of those that are complete and undamaged;
        None if there is none.

        Args:
            warn: Called with a message for each damaged state.
            upto: Ignore and remove states with a higher step; None keeps all.
        """

    def sound(self, step: int, warn: Callable[[str], None]) -> Path | None:
        """Return the folder of the state that was saved at `step`, or None if that state is missing, incomplete or
        damaged.

        Args:
            warn: Called with a message if the state is damaged.
        """

    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        """Save the files in `folder` as the state at `step`, by moving or copying them. A reader sees all of the files
        or none.

        Args:
            digests: {file name: `sha256:<hex>`} of files that were hashed while they were written; the other files are
                hashed here.

        Raises:
            OSError, StoreError: The state could not be saved, for lack of space for example. States of earlier steps
                are left as they were.
        """

    def prune(self, keep: int, protect: Collection[int] = ()) -> None:
        """Remove saved states, except those of the `keep` highest steps and of the steps in `protect`. If `keep` is 0,
        remove all saved states of this key, protected ones too.
        """


@dataclass(frozen=True)
class Part:
    """One part of the work of a stage that works in parts, such as a range of rows. The stage's function `split` makes
    the list of parts. Each part has its own cache key and its own result.

    Attributes:
        identity: {"params": ..., "inputs": ...}: the settings and inputs that determine the part's result, together
            with the stage's code and environment. They become part of the JSON whose hash is the part's key.
        arguments: JSON that tells the stage's `part` function which part to make.
    """

    identity: Meta
    arguments: Meta


class PartResult(NamedTuple):
    """The result of one part of a stage's work (such as a range of rows), as the stage's function reads it.

    Attributes:
        arguments: The arguments of the part.
        folder: The files that the part wrote; they exist only until the next result is read.
        meta: The metadata that the part's function returned.
    """

    arguments: Meta
    folder: Path
    meta: Meta


class Parts:
    """The results of a stage's parts (pieces of its work, such as ranges of rows), which the stage's own function
    reads to put the artifact together. The results come in the order in which the stage's function `split` listed the
    parts.

    The function can't tell whether a result was made now or in an earlier run, or on which machine.

    Attributes:
        shared: The folder that `split` wrote.
    """

    def __init__(self, shared: Path, arguments: Sequence[Meta], results: Iterator[tuple[Path, Meta]]) -> None:
        self.shared = shared
        self._arguments = deque(arguments)
        self._results = results

    def of(self, **wanted: Json) -> Iterator[PartResult]:
        """Yield the results of the next parts, as long as the arguments of each part have the values in `wanted`, such
        as `split="train"`.

        The iteration ends before the first part with other values. The next call begins with that part.
        """
        while self._arguments and all(self._arguments[0][name] == value for name, value in wanted.items()):
            yield PartResult(self._arguments.popleft(), *next(self._results))


class Workdir:
    """The folders that a stage writes to, and the methods by which it reports progress, metrics and messages.

    Values that differ from run to run, such as seconds, are reported by these methods. They are no part of the
    artifact's metadata, which must be deterministic.

    Attributes:
        path: The folder of the stage's files, which becomes the artifact.
        scratch: A folder for temporary files, removed afterwards.
        partial: The saved states from which the stage can continue unfinished work, or None for a stage that saves
            none.
        emit: Called with each report as one JSON object.
    """

    def __init__(self, path: Path, scratch: Path, emit: Callable[[Meta], None], partial: Partial | None = None) -> None:
        self.path = path
        self.scratch = scratch
        self.partial = partial
        self.emit = emit
        self._shown = 0.0

    def progress(self, done: int, total: int, unit: str = "rows", **figures: Json) -> None:
        """Report that `done` of `total` units are finished. May be called often: about ten reports a second are sent.

        Args:
            figures: Values shown beside the progress bar, such as loss.
        """
        now = time.monotonic()
        if done >= total or now - self._shown >= 0.1:
            self._shown = now
            self.emit({"progress": {"done": done, "total": total, "unit": unit, **figures}})

    def metrics(self, step: int, **values: float) -> None:
        """Report values of metrics at a training step, such as loss, learning_rate, grad_norm, tokens_per_second or
        eval_loss. Over the steps, they make a curve.
        """
        self.emit({"metrics": {"step": step, "time": time.time(), "values": values}})

    def saves(self) -> None:
        """Announce that this stage saves its state when it is stopped. From then on, the stage has
        `launch.grace_seconds` seconds to end after SIGTERM, before it is killed.

        A stage that does not call this is killed if it has not ended a few seconds after SIGTERM.
        """
        self.emit({"saves": True})

    def figures(self, **values: Json) -> None:
        """Report what this run measured or cost, as {name: value}: seconds, samples_per_second, peak memory,
        dollars."""
        self.emit({"figures": values})

    def warn(self, text: str) -> None:
        """Report something that the user should read, such as dropped rows or a fallback."""
        self.emit({"warn": text})

    def info(self, text: str) -> None:
        """Report a message for the user that is no warning, such as a count."""
        self.emit({"info": text})


@dataclass(frozen=True)
class Stage:
    """The description of a stage: a function that makes an artifact (files and metadata in the store). The store keeps
    the artifact under the stage's key, the hash of all that determines the artifact.

    A stage that works in parts (pieces, such as ranges of rows) has the functions `split` and `part` as well. Its own
    function then takes an argument `parts` (see `Parts`) and puts the results of the parts together. `split` and
    `part` get those inputs of the stage that are named among their parameters.

    Attributes:
        name: The function's name.
        kind: The kind of the artifact that the stage makes, such as "tokens".
        function: The function itself.
        params: Given the config, returns the settings that are part of the stage's key.
        inputs: Given the config and the inputs, returns JSON that describes the inputs in the stage's key.
        accel: Given the config, returns JSON about the device and its compiler for the stage's key. The key also gets
            the versions of the Python distributions listed under `versions`.
        environ: Given the config, returns environment variables of the stage's process.
        assets: Files that the stage reads beside its code, such as templates. They are hashed like code. Paths are
            relative to the folder that holds the stage's top-level package.
        ranks: Given the config, returns the number of processes that run the stage together. Each calls the function
            with the same arguments; only the reports and the result of process 0 are used.
        resumable: Whether the stage saves states in `out.partial` and can continue from them.
        split: `split(config, inputs..., out)` returns the list of `Part` and writes the data that all parts read to
            `out.path`.
        part: `part(config, inputs..., shared, part, out)` makes one part: it writes to `out.path` and returns metadata.
            `shared` is the folder that `split` wrote, as an Input; `part` is the part's `arguments`.
        keep_parts: Whether the store keeps the result of each part under a key of its own, so that later runs make only
            changed parts. Worth it if making a part takes longer than copying its result.
    """

    name: str
    kind: str
    function: Callable[..., Meta]
    params: Callable[[Any], Meta]
    inputs: Callable[[Any, Keyed], Meta]
    accel: Callable[[Any], Meta]
    environ: Callable[[Any], dict[str, str]]
    assets: tuple[str, ...] = ()
    ranks: Callable[[Any], int] = lambda config: 1
    resumable: bool = False
    split: Callable[..., list[Part]] | None = None
    part: Callable[..., Meta] | None = None
    keep_parts: bool = False


def identities(config: StageConfig, inputs: Keyed) -> Meta:
    """Return {input's name: the digest of an artifact, or the identity of a source (data or a model from outside the
    store)}, the form in which a stage's cache key contains its inputs.

    This is the default for the argument `inputs` of the decorator `stage`.
    """
    return {name: item.digest if isinstance(item, Artifact) else item.identity for name, item in inputs.items()}


def stage(
    *,
    kind: str,
    params: Callable[[Any], Meta] = keyed_params,
    inputs: Callable[[Any, Keyed], Meta] = identities,
    accel: Callable[[Any], Meta] = lambda config: {},
    environ: Callable[[Any], dict[str, str]] = lambda config: {},
    assets: tuple[str, ...] = (),
    ranks: Callable[[Any], int] = lambda config: 1,
    resumable: bool = False,
    split: Callable[..., list[Part]] | None = None,
    part: Callable[..., Meta] | None = None,
    keep_parts: bool = False,
) -> Callable[[Function], Function]:
    """Return a decorator that marks a function as a stage: it attaches a `Stage` with these values, which `of` returns,
    and leaves the function as it is. See `Stage` for the arguments."""

    def mark(function: Function) -> Function:
        described = Stage(
            function.__name__,
            kind,
            function,
            params,
            inputs,
            accel,
            environ,
            assets,
            ranks,
            resumable,
            split,
            part,
            keep_parts,
        )
        function.stage = described  # type: ignore[attr-defined]
        return function

    return mark


def of(function: Callable[..., Meta]) -> Stage:
    """Return the description (a `Stage`) that the decorator `stage` attached to a function.

    Raises:
        TypeError: The function is not decorated.
    """
    described = getattr(function, "stage", None)
    if not isinstance(described, Stage):
        raise TypeError(f"{function!r} is not a stage: decorate it with @stage")
    return described


def write_json(path: Path, document: Json) -> None:
    """Write a file of an artifact as JSON whose bytes depend on the document alone: sorted keys, no NaN."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def read_json(path: Path) -> Json:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
