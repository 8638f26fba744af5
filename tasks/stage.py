"""Mark a function as a stage: the decorator `stage`, the description `Stage` that it attaches, and the `Workdir` a stage
writes to.

    @stage(kind="tokens")
    def tokenize_text(config: TokenizeConfig, texts: Input, model: Source, out: Workdir) -> Meta: ...

The function takes its config, then its inputs, then a `Workdir`. It writes its files to `out.path` and returns the
artifact's metadata. It must be deterministic: the same config and inputs give the same bytes. Its parameter names are the
names of the inputs in the stage's key, the hash of all that determines the result, under which the store finds the
artifact.

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

from tasks.artifact import Artifact, Json, Meta, Source
from tasks.config import StageConfig, keyed_params

SCHEMA = 1

Keyed = Mapping[str, "Artifact | Source"]
Function = TypeVar("Function", bound=Callable[..., Meta])


class Partial(Protocol):
    """The saved state from which a stage resumes its work on the result of one cache key, in the folder
    `<root>/partial/<key>/` of the store (root: the store's own folder).

    A state is a folder saved at a step (a number that grows, such as that of the optimizer's steps), for example a
    training checkpoint. Only completely written steps are visible.
    """

    def newest(self, warn: Callable[[str], None], upto: int | None = None) -> tuple[int, Path] | None:
        """Return (step, folder) of the newest step that is complete and undamaged, or None.

        Args:
            warn: Called with a message for each damaged step.
            upto: Ignore and remove steps after this one; None keeps all.
        """

    def sound(self, step: int, warn: Callable[[str], None]) -> Path | None:
        """Return the folder of the state that was saved at this step, or None if the folder is incomplete or damaged.

        Args:
            warn: Called with a message if the folder is damaged.
        """

    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        """Save `folder` as the state at `step`, by moving or copying it. Readers see all of it or nothing.

        Args:
            digests: `sha256:<hex>` by file name, of files that were hashed while they were written; the others are hashed
                here.

        Raises:
            OSError, StoreError: It could not be saved, for lack of space for example. Earlier steps are left as they were.
        """

    def prune(self, keep: int, protect: Collection[int] = ()) -> None:
        """Remove the saved states of all complete steps but the newest `keep` and those in `protect`. If `keep` is 0,
        remove all state of the stage's key.
        """


@dataclass(frozen=True)
class Part:
    """One part of the work of a stage that works in parts, such as a range of rows, as the stage's function `split`
    lists it. A part has a cache key and a result of its own.

    Attributes:
        identity: {"params": ..., "inputs": ...}: JSON that, with the stage's code and environment, determines the part's
            result. It becomes part of the part's key document, the JSON whose hash is the part's key.
        arguments: JSON that identifies the part to the stage's `part` function.
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
    """Gives the function of a stage that works in parts the results of these parts, in the order in which the stage's
    function `split` listed them.

    The function can't tell whether a result was made now or in an earlier run, or on which machine.

    Attributes:
        shared: The folder that `split` wrote.
    """

    def __init__(self, shared: Path, arguments: Sequence[Meta], results: Iterator[tuple[Path, Meta]]) -> None:
        self.shared = shared
        self._arguments = deque(arguments)
        self._results = results

    def of(self, **wanted: Json) -> Iterator[PartResult]:
        """Yield the results of the next parts as long as their arguments have the values in `wanted`, such as
        `split="train"`.

        Stops before the first part whose arguments differ. The next call continues with that part.
        """
        while self._arguments and all(self._arguments[0][name] == value for name, value in wanted.items()):
            yield PartResult(self._arguments.popleft(), *next(self._results))


class Workdir:
    """The folders that a stage writes to, and the methods by which it reports progress, metrics and messages.

    Values that vary between runs are reported by these methods and not put into the metadata, which must be
    deterministic.

    Attributes:
        path: The folder of the stage's files, which becomes the artifact.
        scratch: A folder for temporary files, removed afterwards.
        partial: Resumable state, or None for a stage that can't resume.
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
    """The description of a stage: a function that makes an artifact (files and metadata in the store), whose result is
    cached under a key.

    A stage that works in parts has the functions `split` and `part` as well; its own function then takes an argument
    `parts` (see `Parts`) and puts the results together. `split` and `part` are called with the inputs whose names are
    among their parameters.

    Attributes:
        name: The function's name.
        kind: The kind of the artifact that it makes.
        params: Returns the params in the stage's key, from the config.
        inputs: Returns the inputs in the stage's key, from the config and the inputs.
        accel: Returns the accelerator part of the stage's key, from the config. Python distributions that it lists
            under `versions` enter the key with their versions.
        environ: Returns environment variables of the stage's process, from the config.
        assets: Files that the stage reads beside its code, such as templates. They are hashed like code. Paths are relative
            to the folder that holds the stage's top-level package.
        ranks: Returns the number of processes that run the stage together. Each calls the function with the same arguments;
            the events and the result of rank 0 count.
        resumable: Whether the stage saves state in `out.partial` and can resume from it.
        split: `split(config, inputs..., out)` returns the list of `Part` and writes the data that all parts read to
            `out.path`.
        part: `part(config, inputs..., shared, part, out)` makes one part: it writes to `out.path` and returns metadata.
            `shared` is the folder that `split` wrote, as an Input; `part` is the part's `arguments`.
        keep_parts: Whether the store keeps each part with a record of its own (the entry that names the result of a
            key), so that later runs make only changed parts. Worth it if making a part takes longer than copying its
            result.
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
