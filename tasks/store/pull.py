"""Fetch or verify blobs in threads, while the calling thread reports progress."""

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
"""Called with (bytes done, bytes in all) in the calling thread; its exception ends the work."""


def pull_all(pull: Callable[[File, CountBytes], None], files: Sequence[File], report: ReportBytes) -> None:
    """Call `pull` for each file in up to 8 threads, and `report` every 0.2 s. An exception of `pull` is raised.

    pull: gets a file and a function for the bytes done since its last call, by which an interruption ends it.
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
        """Add bytes to the progress. Raises InterruptedError after an interruption."""
        if self.is_ended:
            raise InterruptedError("nobody waits for this file any longer")
        with self._lock:
            self.done += size
