"""Run the steps of a stage that works in parts."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.stage import Part, Parts, Stage, Workdir
from trnflow.tasks.system.threads import ThreadPool

Inputs = Mapping[str, Input | Source]
Events = list[Meta]


def whole(function: Callable[..., Meta], config: StageConfig, inputs: Inputs, out: Workdir, threads: int = 1) -> Meta:
    """Run a stage in this process, its parts in threads, and return its metadata."""
    stage: Stage | None = getattr(function, "stage", None)
    if stage is None or stage.split is None:
        return function(config, **inputs, out=out)
    shared = Workdir(out.scratch / "shared", out.scratch / "split", out.emit)
    shared.path.mkdir(parents=True)
    parts = split(stage, config, inputs, shared)
    given: Input = Input(shared.path, "shared", {}, "")
    todo = [(part.arguments, None) for part in parts]
    return gather(stage, config, inputs, given, todo, out.scratch / "parts", out, threads)


def split(stage: Stage, config: StageConfig, inputs: Inputs, out: Workdir) -> list[Part]:
    """Return the stage's parts; what they share is written to `out.path`."""
    assert stage.split is not None
    return stage.split(config, **_named(stage.split, inputs), out=out)


def make_part(stage: Stage, config: StageConfig, inputs: Inputs, shared: Input, arguments: Meta, out: Workdir) -> Meta:
    """Make one part and return its metadata. `out.path` must not exist."""
    assert stage.part is not None
    out.path.mkdir(parents=True)
    out.scratch.mkdir(parents=True, exist_ok=True)
    try:
        meta = stage.part(config, **_named(stage.part, {**inputs, "shared": shared}), part=arguments, out=out)
    finally:
        shutil.rmtree(out.scratch, ignore_errors=True)
    json.dumps(meta, allow_nan=False)
    return meta


def gather(
    stage: Stage,
    config: StageConfig,
    inputs: Inputs,
    shared: Input,
    todo: Sequence[tuple[Meta, Meta | None]],
    folder: Path,
    out: Workdir,
    threads: int,
    on_part: Callable[[int, Path, Meta], None] = lambda number, folder, meta: None,
) -> Meta:
    """Make the missing parts, call the stage's function on all, and return its metadata.

    Args:
        todo: (arguments, metadata or None if it is missing) of each part, in order.
        folder: Its subfolder `N` has, or gets, part N, which is deleted once read.
        made: Called with number, folder and metadata of each part made here.
    """
    with ThreadPool(threads, stage.name) as pool:

        def start(number: int, arguments: Meta) -> Callable[[], tuple[Meta, Events]]:
            place, events = folder / str(number), Events()
            part = Workdir(place, place.with_name(f"{number}.scratch"), events.append)
            future = pool.submit(partial(make_part, stage, config, inputs, shared, arguments, part))
            return lambda: (future.result(), events)

        def results() -> Iterator[tuple[Path, Meta]]:
            waiting: deque[tuple[int, Meta | None, Callable[[], tuple[Meta, Events]] | None]] = deque()
            following = iter(enumerate(todo))

            def take(count: int) -> None:
                for number, (arguments, meta) in islice(following, count):
                    waiting.append((number, meta, start(number, arguments) if meta is None else None))

            # threads work so many parts ahead of the function; tokenizers and numpy release the GIL
            take(threads + 1)
            while waiting:
                number, meta, pending = waiting.popleft()
                place = folder / str(number)
                if pending is not None:
                    meta, events = pending()
                    for event in events:
                        out.emit(event)
                    on_part(number, place, meta)
                assert meta is not None
                yield place, meta
                shutil.rmtree(place)
                take(1)

        parts = Parts(shared.path, [arguments for arguments, _ in todo], results())
        return stage.function(config, **inputs, parts=parts, out=out)


def _named(function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that are parameters of the function."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: given for name, given in inputs.items() if name in names}
