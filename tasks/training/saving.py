"""Checkpoints, written beside training.

`save` copies the state to the host, which is all that training waits for; a thread writes shards and index, and the store's
partial state takes them. One write is in flight at a time: the next `save` waits for it, so the host holds one copy of the
state at most (12 bytes a parameter, among all ranks). Of several ranks each writes its own slices, and rank 0 keeps the
checkpoint when all have; the threads meet in a folder, never in a collective. Whoever waits, waits until rank 0 has kept it.

A disk or a store that does not take a checkpoint is no reason to lose the training: it is warned of, nothing half-written
stays, the checkpoints before are as they were, and the next one is tried. Any other error ends the training at its next
`save`, `check` or at the end.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tasks.artifact import Meta
from tasks.errors import StoreError
from tasks.stage import Partial, Workdir
from tasks.training import checkpoint
from tasks.training.meeting import Meeting
from tasks.training.ranks import World

if TYPE_CHECKING:
    from tasks.training.engine import Box


class Saver:
    """As a context: left, however, it waits for the write in flight. Each call is made on every rank.

    kept: the newest step that can be gone on from, None for the start; known on rank 0 alone, as are the figures."""

    def __init__(self, out: Workdir, world: World, *, keep: int, timeout_seconds: float, kept: int | None) -> None:
        self._out, self._world, self._keep, self._timeout = out, world, keep, timeout_seconds
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._inflight: Future[None] | None = None
        self.kept = kept
        self.figures = {"checkpoints": 0.0, "checkpoint_bytes": 0.0, "checkpoint_stall_seconds": 0.0}

    def save(self, step: int, boxes: Iterable[Box], state: Meta, protect: Collection[int] = ()) -> None:
        """Copy `boxes` now, and write them meanwhile. protect: steps that stay, however old."""
        if self._out.partial is None:
            return
        begun = time.perf_counter()
        self.wait()
        self._inflight = self._thread.submit(self._write, self._out.partial, step, [*boxes], state, protect)
        self.figures["checkpoint_stall_seconds"] += time.perf_counter() - begun

    def wait(self) -> None:
        """Until nothing is in flight; raises what the thread met."""
        inflight, self._inflight = self._inflight, None
        if inflight is not None:
            inflight.result()

    def check(self) -> None:
        """Raise what the thread met, if it has ended."""
        if self._inflight is not None and self._inflight.done():
            self.wait()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.wait()
        except Exception as mine:
            if error is None:
                raise
            self._out.warn(f"besides, the last checkpoint failed: {mine}")

    def _write(self, states: Partial, step: int, boxes: list[Box], state: Meta, protect: Collection[int]) -> None:
        folder = self._out.scratch / f"step-{step}"
        meeting = Meeting(folder.with_suffix(".ranks"), self._world, self._timeout)
        try:
            told = meeting.gather(_written(folder, boxes))
            if told is None:
                return meeting.wait()
            self._keep_it(states, step, folder, told, state)
            states.prune(self._keep, protect=protect)
        except (OSError, StoreError) as error:
            self._warn(step, error)
        finally:
            if self._world.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
                meeting.end()

    def _keep_it(self, states: Partial, step: int, folder: Path, told: list[Meta], state: Meta) -> None:
        for error in (one["error"] for one in told if "error" in one):
            raise OSError(error)
        checkpoint.write_index(folder, told, state)
        size = sum(file.stat().st_size for file in folder.iterdir())
        states.commit(step, folder, {file: digest for one in told for file, digest in one["digests"].items()})
        self.kept = step
        self.figures["checkpoints"] += 1
        self.figures["checkpoint_bytes"] = size

    def _warn(self, step: int, error: Exception) -> None:
        if self.kept == step:
            self._out.warn(f"older checkpoints than that of step {step} could not be removed: {error}")
            return
        begin = "the start" if self.kept is None else f"step {self.kept}"
        self._out.warn(
            f"the checkpoint of step {step} could not be saved: {error}. Training goes on; if it is stopped before the next "
            f"checkpoint, it goes on from {begin}"
        )


def _written(folder: Path, boxes: list[Box]) -> Meta:
    """Write this rank's slices, and let go of the copy. What it tells rank 0: what was written, or {"error": ...}."""
    try:
        return checkpoint.write_shards(folder, boxes)
    except OSError as error:
        for device in {box.device for box in boxes}:  # half a file; the room it takes may be what others need
            with suppress(OSError):
                checkpoint.shard_file(folder, device).unlink()
        return {"error": error.strerror or str(error)}
    finally:
        boxes.clear()
