"""Write checkpoints in a thread while training goes on: training waits only for the copy to the host.

A full disk or failing store is a warning: earlier checkpoints stay, and the next is tried. Another error ends training.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Timer
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.stage import Partial, Workdir
from trnflow.tasks.training.checkpoint import shards
from trnflow.tasks.training.checkpoint.rank_files import RankFiles
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from trnflow.tasks.training.shared_types import TensorSlice

FAILED_SECONDS = 30.0
"""How long ranks wait for each other's part of a checkpoint once training has failed."""


class StateCopy(NamedTuple):
    """A copy of the training state on the host. slices: of this rank; state: `TrainingState` as JSON."""

    step: int
    slices: list[TensorSlice]
    state: Meta


class Saver:
    """Writes checkpoints in a thread; the context's end waits for the current one. Every rank makes the same calls.

    Args:
        out: Its `partial` gets the checkpoints; without one nothing is saved.
        keep: How many of the newest stay.
        kept: The step that training resumes from, or None.

    On rank 0, `kept` is the newest checkpoint's step, and `figures` has number, bytes and the seconds that training
    waited.
    """

    def __init__(self, out: Workdir, world: World, *, keep: int, timeout_seconds: float, kept: int | None) -> None:
        self._out, self._world, self._keep, self._timeout = out, world, keep, timeout_seconds
        # one at a time, so the host holds one copy: 12 bytes a trained parameter with AdamW
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._inflight: Future[None] | None = None
        self._best: StateCopy | None = None  # kept in memory until all ranks know that it was written
        self._why = ""
        self._given_up = Event()
        self.kept = kept
        self.figures = {"checkpoints": 0.0, "checkpoint_bytes": 0.0, "checkpoint_stall_seconds": 0.0}

    def save(self, step: int, slices: Iterable[TensorSlice], state: Meta, best: int = 0) -> None:
        """Copy the state now and write it in the background.

        best: the best evaluation's step, 0 for none; its checkpoint is never removed.
        """
        if self._out.partial is None:
            return
        begun = time.perf_counter()
        self.wait()
        # no later checkpoint is committed before the best one: its weights may become the result
        if best == step or self._has_best(best):
            self._best = None  # frees the old copy before the next is made
            copy = StateCopy(step, [*slices], state)
            self._best = copy if best == step else None
            self._start(self._out.partial, copy, best)
        self.figures["checkpoint_stall_seconds"] += time.perf_counter() - begun

    def finish(self, best: int = 0) -> None:
        """Wait for the current checkpoint; write the best step's again if missing. Raises StoreError on every rank."""
        self.wait()
        if not self._has_best(best):
            begin = "trains from the start" if self.kept is None else f"goes on from step {self.kept}"
            raise StoreError(
                f"the checkpoint of step {best}, whose evaluation was the best, could not be kept: {self._why}",
                f"free some disk space, and run the same command again: it {begin}",
            )

    def _has_best(self, best: int) -> bool:
        """Return, on every rank alike, whether the best step's checkpoint is kept; write it again if not."""
        copy = self._best
        if copy is None or copy.step != best or self._out.partial is None:  # already written, or there is none
            return True
        if not self._world.broadcast_flag(self.kept == best):
            self._start(self._out.partial, copy, best)
            self.wait()
            if not self._world.broadcast_flag(self.kept == best):
                return False
        self._best = None
        return True

    def _start(self, states: Partial, copy: StateCopy, best: int) -> None:
        # the writer empties its list: the best step's copy must outlive a failed write
        slices = [*copy.slices] if copy is self._best else copy.slices
        self._inflight = self._thread.submit(self._write, states, copy.step, slices, copy.state, best)

    def wait(self) -> None:
        """Wait for the current checkpoint; raise the thread's error."""
        inflight, self._inflight = self._inflight, None
        if inflight is not None:
            inflight.result()

    def check(self) -> None:
        """Raise the thread's error if it failed, without waiting."""
        if self._inflight is not None and self._inflight.done():
            self.wait()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # where training failed, a rank may be gone for which the others would wait for minutes
        patience = Timer(FAILED_SECONDS, self._given_up.set)
        if error is not None:
            patience.start()
        try:
            self.wait()
        except Exception as mine:
            if error is None:
                raise
            self._out.warn(f"the last checkpoint failed too: {mine}")
        finally:
            patience.cancel()

    def _write(self, states: Partial, step: int, slices: list[TensorSlice], state: Meta, best: int) -> None:
        folder = self._out.scratch / f"step-{step}"
        files = RankFiles(folder.with_suffix(".ranks"), self._world, self._timeout, self._given_up)
        try:
            written = files.gather(_write_slices(folder, slices))
            if written is None:
                return files.wait()
            self._commit(states, step, folder, written, state)
            if step == best and self._best is not None:
                self._best.slices.clear()
            states.prune(self._keep, protect=[best])
        except (OSError, StoreError) as error:
            self._warn(step, best, error)
        finally:
            if self._world.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
                files.end()

    def _commit(self, states: Partial, step: int, folder: Path, written: list[Meta], state: Meta) -> None:
        for error in (shard["error"] for shard in written if "error" in shard):
            raise OSError(error)
        shards.write_index(folder, written, state)
        size = sum(file.stat().st_size for file in folder.iterdir())
        states.commit(step, folder, {file: digest for shard in written for file, digest in shard["digests"].items()})
        self.kept = step
        self.figures["checkpoints"] += 1
        self.figures["checkpoint_bytes"] = size

    def _warn(self, step: int, best: int, error: Exception) -> None:
        self._why = str(error)
        if self.kept == step:
            self._out.warn(f"older checkpoints than that of step {step} could not be removed: {error}")
            return
        begin = "the start" if self.kept is None else f"step {self.kept}"
        lost = f"the checkpoint of step {step} could not be saved: {error}. Training goes on"
        if step == best:
            again = "it is the best, so it is written again before the next one"
            self._out.warn(f"{lost}; {again}; if it is stopped before that is kept, it goes on from {begin}")
            return
        self._out.warn(f"{lost}; if it is stopped before the next checkpoint, it goes on from {begin}")


def _write_slices(folder: Path, slices: list[TensorSlice]) -> Meta:
    """Write this rank's slices and free the copy. Return what was written, or {"error": ...} for rank 0."""
    try:
        return shards.write_shards(folder, slices)
    except OSError as error:
        for device in {part.device for part in slices}:  # remove an incomplete file: the other ranks may need the space
            with suppress(OSError):
                shards.shard_file(folder, device).unlink()
        return {"error": error.strerror or str(error)}
    finally:
        slices.clear()
