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
    total, counts, is_ended = sum(file.size for file in files), [0], threading.Event()

    def count(size: int) -> None:
        if is_ended.is_set():
            raise InterruptedError("nobody waits for this file any longer")
        counts.append(size)  # threads may append at once

    with ThreadPool(1, "pull") as pool:
        work = pool.submit(lambda: in_threads(lambda file: pull(file, count), files, THREADS))
        try:
            while not wait([work], timeout=REPORT_SECONDS).done:
                report(min(sum(counts), total), total)
        except BaseException:
            is_ended.set()
            raise
    work.result()
    report(total, total)
