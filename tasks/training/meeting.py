"""Ranks that meet in a folder instead of a collective.

For threads beside training: a collective of theirs would mix with those of the steps, in another order on each rank, and all
would wait for ever. Each rank leaves a file; rank 0 waits for those of all, and takes the folder away when it is done,
for which the others wait. One process alone waits for nobody.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tasks.artifact import Meta
from tasks.errors import ProcessFailed
from tasks.stage import read_json, write_json
from tasks.training.ranks import World

POLL = 0.02


class Meeting:
    """folder: the same on all ranks, of this meeting alone; seconds: how long they wait for each other."""

    def __init__(self, folder: Path, world: World, seconds: float) -> None:
        self._folder, self._world, self._seconds = folder, world, seconds

    def gather(self, mine: Meta) -> list[Meta] | None:
        """What each rank brings, by rank, on rank 0; None on the others. ProcessFailed names the ranks that did not come."""
        if self._world.rank:
            self._leave(mine)
            return None
        others = [self._file(rank) for rank in range(1, self._world.mesh.data * self._world.mesh.model)]
        if not _until(lambda: all(file.exists() for file in others), self._seconds):
            late = [str(rank) for rank, file in enumerate(others, start=1) if not file.exists()]
            raise ProcessFailed(
                f"waited {self._seconds} s for ranks {', '.join(late)} to write their slices",
                "see what holds up their disk; raise train.collective_timeout_seconds if it is only slow",
            )
        return [mine, *(read_json(file) for file in others)]

    def end(self) -> None:
        """By rank 0: lets the others go."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self) -> None:
        """By the others: until rank 0 has ended it. ProcessFailed when it does not."""
        if not _until(lambda: not self._file(self._world.rank).exists(), self._seconds):
            raise ProcessFailed(
                f"waited {self._seconds} s for rank 0 to keep a checkpoint",
                "see what holds up the store; raise train.collective_timeout_seconds if it is only slow",
            )

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"

    def _leave(self, mine: Meta) -> None:
        """Also on a disk that is full at the moment: another rank makes room when it fails."""

        def left() -> bool:
            aside = self._folder / f"rank-{self._world.rank}.part"
            with contextlib.suppress(OSError):
                write_json(aside, mine)
                aside.replace(self._file(self._world.rank))
                return True
            return False

        if not _until(left, self._seconds):
            raise ProcessFailed(f"can't write below {self._folder}", "make room on the disk")


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True
