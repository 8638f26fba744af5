"""Compute items in a thread, one item ahead of the caller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def prefetch(make: Callable[[Item], Made], items: Iterable[Item]) -> Generator[Made, None, None]:
    """Yield `make(item)` for each item, in order. A thread computes the next value while the caller works on this one.

    An exception in `make` is raised here, in place of the value that `make` would have returned. A
    caller that does not read the generator to the end must close the generator (`contextlib.closing`), so that the
    thread ends."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming: Future[Made] | None = None
        for item in items:
            following = thread.submit(make, item)
            if coming is not None:
                yield coming.result()
            coming = following
        if coming is not None:
            yield coming.result()
