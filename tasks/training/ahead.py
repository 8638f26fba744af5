"""Work done one item ahead, by a thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(make: Callable[[Item], Made], items: Iterable[Item]) -> Generator[Made, None, None]:
    """`make` of each item, in order; the next one is made while the caller works on this one. An error of `make` is raised
    where its item would have come. Close it (`contextlib.closing`) when not all is taken."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming: Future[Made] | None = None
        for item in items:
            following = thread.submit(make, item)
            if coming is not None:
                yield coming.result()
            coming = following
        if coming is not None:
            yield coming.result()
