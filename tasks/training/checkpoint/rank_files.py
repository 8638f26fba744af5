"""Exchange JSON documents between ranks (the processes that train together) through files in a shared folder.

The threads that write checkpoints exchange files and not collectives. With collectives, each rank could call the
thread's collectives and those of the training steps in another order, and all ranks would wait forever. Each rank
except rank 0 writes a file, and rank 0 waits for all files. At the end rank 0 removes the folder, and the other ranks
wait until the folder is gone. A single process exchanges nothing and waits for nothing."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ProcessFailed
from trnflow.tasks.stage import read_json, write_json
from trnflow.tasks.training.ranks import World

POLL = 0.02


class RankFiles:
    """One exchange between ranks (the processes that train together) through files, while a checkpoint is written:
    each rank except rank 0 writes a JSON document, and rank 0 reads all of them. A rank that waits longer than
    `seconds` for another one raises ProcessFailed.

    Args:
        folder: the same path on all ranks, used for one exchange only.
        world: this rank's number, and the number of ranks.
        seconds: the longest time that a rank waits for another rank.
    """

    def __init__(self, folder: Path, world: World, seconds: float) -> None:
        self._folder, self._world, self._seconds = folder, world, seconds

    def gather(self, mine: Meta) -> list[Meta] | None:
        """Send the document `mine` of this rank (process) to rank 0, the first process, through a file. Return every
        rank's document, in order of ranks, on rank 0; None on the others.

        Raise ProcessFailed, with the numbers of the missing ranks, when not all documents arrive within `seconds`."""
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
        """Remove the folder with the documents of all ranks, which ends the `wait` of the other ranks. Only rank 0
        calls this, when it has written the checkpoint or failed to."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self) -> None:
        """Wait until rank 0 (the first process) has removed the shared folder. Rank 0 removes the folder after it has
        written the checkpoint or failed to. Only the other ranks call this. Raise ProcessFailed when rank 0 takes
        longer than the `seconds` of this exchange."""
        if not _until(lambda: not self._file(self._world.rank).exists(), self._seconds):
            raise ProcessFailed(
                f"waited {self._seconds} s for rank 0 to keep a checkpoint",
                "see what holds up the store; raise train.collective_timeout_seconds if it is only slow",
            )

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"

    def _leave(self, mine: Meta) -> None:
        """Write this rank's document. If the disk is full, try again: another rank that fails frees space."""

        def left() -> bool:
            aside = self._folder / f"rank-{self._world.rank}.part"
            with contextlib.suppress(OSError):
                write_json(aside, mine)
                aside.replace(self._file(self._world.rank))
                return True
            return False

        if not _until(left, self._seconds):
            raise ProcessFailed(f"can't write below {self._folder}", "free some space on the disk")


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True
