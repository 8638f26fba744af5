"""Fetch or verify blobs (an artifact's files as the store has them) in several threads, while the calling thread
reports the progress in bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait

from trnflow.tasks.artifact import File
from trnflow.tasks.keys.hash_cache import in_threads
from trnflow.tasks.store.backend import CountBytes
from trnflow.tasks.system.threads import ThreadPool

THREADS = 8
REPORT_SECONDS = 0.2
"""Seconds between two progress reports."""

ReportBytes = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), in the thread that called `pull_all`. An exception that it raises ends the
work."""


def pull_all(pull: Callable[[File, CountBytes], None], files: Sequence[File], report: ReportBytes) -> None:
    """Call `pull` for each file, in up to 8 threads at a time, and return when all calls have ended. Meanwhile the
    calling thread calls `report` every 0.2 seconds with the progress. An exception of `pull` is raised.

    pull: fetches or verifies a file; called with the file and a function, to which `pull` passes the number of bytes
    done since its last call; report: called with (bytes done, bytes of all files); not called if there are no files. If
    the calling thread is interrupted, each running `pull` is ended by an exception when it next reports bytes.
    """
    if not files:
        return
    counter = _Counter()
    total = sum(file.size for file in files)
    with ThreadPool(1, "pull") as pool:
        work = pool.submit(lambda: in_threads(lambda file: pull(file, counter.count), files, THREADS))
        try:
            while not wait([work], timeout=REPORT_SECONDS).done:
                report(min(counter.done, total), total)
        except BaseException:
            counter.is_ended = True
            raise
    work.result()
    report(total, total)


class _Counter:
    def __init__(self) -> None:
        self.done = 0
        self.is_ended = False
        self._lock = threading.Lock()

    def count(self, size: int) -> None:
        """Add a number of bytes to the progress. Raises InterruptedError after the calling thread was interrupted."""
        if self.is_ended:
            raise InterruptedError("nobody waits for this file any longer")
        with self._lock:
            self.done += size
