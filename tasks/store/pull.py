"""Bringing blobs to this machine in threads, while the thread that asked says how far they are and can end it.

What is asked for is told in bytes: those pulled from a remote store, or read to check them in a local one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from tasks.artifact import File
from tasks.memo import in_threads
from tasks.store.backend import Count

THREADS = 8
EVERY = 0.2
"""Seconds between two words on how far it is."""

Told = Callable[[int, int], None]
"""(bytes done, bytes in all), in the thread that asked. What it raises ends the pulling."""


def pull_all(pull: Callable[[File, Count], None], files: Sequence[File], told: Told) -> None:
    """`pull` each file; it counts the bytes as they come, and may be ended where it counts."""
    if not files:
        return
    counter = _Counter()
    total = sum(file.size for file in files)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(in_threads, lambda file: pull(file, counter.count), files, THREADS)
        try:
            while not wait([work], timeout=EVERY).done:
                told(min(counter.done, total), total)
        except BaseException:
            counter.is_ended = True
            raise
    work.result()
    told(total, total)


class _Counter:
    def __init__(self) -> None:
        self.done = 0
        self.is_ended = False
        self._lock = threading.Lock()

    def count(self, size: int) -> None:
        """Of the files' threads."""
        if self.is_ended:
            raise InterruptedError("nobody waits for this file any longer")
        with self._lock:
            self.done += size
