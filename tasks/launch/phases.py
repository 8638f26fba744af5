"""Run a stage in this process: whole, or one phase of a stage that works in parts."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.keys.file_audit import refuse_recorded
from trnflow.tasks.launch.call import Inputs, Phase
from trnflow.tasks.stage import Parts, Stage, Workdir
from trnflow.tasks.system.threads import ThreadPool

Pending = Callable[[], tuple[Meta, list[Meta]]]
"""Waits for a part; returns its metadata and events."""


def run_phase(
    function: Callable[..., Meta], config: StageConfig, inputs: Inputs, out: Workdir, phase: Phase | None = None
) -> Meta:
    """Run a stage or a phase of it, and return its metadata, or {"parts": those that `split` lists}."""
    phase = phase or Phase()
    stage: Stage | None = getattr(function, "stage", None)
    if stage is None or stage.split is None:
        return function(config, **inputs, out=out)
    if phase.name == "part":
        return _make_part(stage, config, inputs, phase.shared, phase.arguments, out)
    if phase.name == "gather":
        return _gather(stage, config, inputs, phase, out)
    shared = out if phase.name == "split" else Workdir(out.scratch / "shared", out.scratch / "split", out.emit)
    shared.path.mkdir(parents=True, exist_ok=True)
    parts = stage.split(config, **_named(stage.split, inputs), out=shared)
    if phase.name == "split":
        return {"parts": [asdict(part) for part in parts]}
    given: Input = Input(shared.path, "shared", {}, "")
    todo: list[tuple[Meta, Meta | None]] = [(part.arguments, None) for part in parts]
    folder = str(out.scratch / "parts")
    return _gather(stage, config, inputs, Phase("gather", given, todo=todo, folder=folder, threads=phase.threads), out)


def _make_part(stage: Stage, config: StageConfig, inputs: Inputs, shared: Input, arguments: Meta, out: Workdir) -> Meta:
    assert stage.part is not None
    for folder in (out.path, out.scratch):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        meta = stage.part(config, **_named(stage.part, {**inputs, "shared": shared}), part=arguments, out=out)
    finally:
        shutil.rmtree(out.scratch, ignore_errors=True)
    json.dumps(meta, allow_nan=False)
    return meta


def _gather(stage: Stage, config: StageConfig, inputs: Inputs, phase: Phase, out: Workdir) -> Meta:
    """Make the missing parts, call the stage's function on all, and return its metadata. A part is deleted once read."""
    folder = Path(phase.folder)
    with ThreadPool(phase.threads, stage.name) as pool:

        def start(number: int, arguments: Meta) -> Pending:
            events: list[Meta] = []
            part = Workdir(folder / str(number), folder / f"{number}.scratch", events.append)
            future = pool.submit(partial(_make_part, stage, config, inputs, phase.shared, arguments, part))
            return lambda: (future.result(), events)

        def results() -> Iterator[tuple[Path, Meta]]:
            waiting: deque[tuple[int, Meta | None, Pending | None]] = deque()
            following = iter(enumerate(phase.todo))

            def take(count: int) -> None:
                for number, (arguments, meta) in islice(following, count):
                    waiting.append((number, meta, start(number, arguments) if meta is None else None))

            # threads work so many parts ahead of the function; tokenizers and numpy release the GIL
            take(phase.threads + 1)
            while waiting:
                number, meta, pending = waiting.popleft()
                if pending is not None:
                    meta, events = pending()
                    for event in events:
                        out.emit(event)
                    if phase.keep:
                        refuse_recorded()
                        # a copy, since the store moves the files that it takes in
                        shutil.copytree(folder / str(number), folder / f"{number}.kept")
                        out.emit({"part": number, "meta": meta})
                assert meta is not None
                yield folder / str(number), meta
                shutil.rmtree(folder / str(number))
                take(1)

        parts = Parts(phase.shared.path, [arguments for arguments, _ in phase.todo], results())
        return stage.function(config, **inputs, parts=parts, out=out)


def _named(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs that are parameters of the function."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: given for name, given in inputs.items() if name in names}
