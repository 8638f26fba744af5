"""Exchange JSON between ranks through files in a shared folder: each rank but 0 writes one, rank 0 waits for all."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ProcessFailed
from trnflow.tasks.stage import read_json, write_json
from trnflow.tasks.training.world import World

POLL = 0.02


class RankFiles:
    """One exchange while a checkpoint is written; a wait of more than `seconds` is ProcessFailed.

    folder: Of this exchange alone, the same on all ranks; given_up: set to end all waiting.
    """

    def __init__(self, folder: Path, world: World, seconds: float, given_up: Event) -> None:
        # no collectives: their order beside the steps' could differ between ranks, which would wait for ever
        self._folder, self._world, self._seconds, self._given_up = folder, world, seconds, given_up

    def gather(self, mine: Meta) -> list[Meta] | None:
        """Send `mine` to rank 0; return all documents in order there, None elsewhere."""
        if self._world.rank:
            self._leave(mine)
            return None
        others = [self._file(rank) for rank in range(1, self._world.mesh.data * self._world.mesh.model)]
        if not self._until(lambda: all(file.exists() for file in others)):
            late = [str(rank) for rank, file in enumerate(others, start=1) if not file.exists()]
            raise ProcessFailed(
                f"ranks {', '.join(late)} did not write their slices within {self._seconds} s, or before training failed",
                "see what holds up their disk; raise train.collective_timeout_seconds if it is only slow",
            )
        return [mine, *(read_json(file) for file in others)]

    def end(self) -> None:
        """Remove the folder, which ends the others' `wait`."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self) -> None:
        """Wait until rank 0 has called `end`. Raises ProcessFailed."""
        if not self._until(lambda: not self._file(self._world.rank).exists()):
            raise ProcessFailed(
                f"rank 0 did not keep a checkpoint within {self._seconds} s, or before training failed",
                "see what holds up the store; raise train.collective_timeout_seconds if it is only slow",
            )

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"

    def _leave(self, mine: Meta) -> None:
        """Write this rank's document."""

        def left() -> bool:
            aside = self._folder / f"rank-{self._world.rank}.part"
            with contextlib.suppress(OSError):
                write_json(aside, mine)
                aside.replace(self._file(self._world.rank))
                return True
            return False

        # on a full disk it tries again: another rank that fails frees space
        if not self._until(left):
            raise ProcessFailed(f"can't write below {self._folder}", "free some space on the disk")

    def _until(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self._seconds
        while not condition():
            if time.monotonic() > deadline or self._given_up.is_set():
                return False
            time.sleep(POLL)
        return True
