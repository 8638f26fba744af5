"""Compute items in a thread, one item ahead of the caller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Address = TypeVar("Address")
Made = TypeVar("Made")


def prefetch(make: Callable[[Address], Made], addresses: Iterable[Address]) -> Generator[Made, None, None]:
    """Yield `make(item)` for each item; a thread computes the next meanwhile. Its exception is raised here.

    Close the generator if it is not read to its end, so that the thread ends.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming: Future[Made] | None = None
        for address in addresses:
            following = thread.submit(make, address)
            if coming is not None:
                yield coming.result()
            coming = following
        if coming is not None:
            yield coming.result()
