"""A thread pool that Ctrl-C can leave while its threads still work."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, TypeVar

SCHEMA = 1

# seconds that a pool waits for its threads after an exception. concurrent.futures waits for them without limit, and a
# thread that hashes a terabyte can't be interrupted.
PATIENCE = 1.0

Value = TypeVar("Value")

_abandoned: list[Thread] = []


class ThreadPool:
    """A pool of at most `count` daemon threads. The end of its `with` statement waits for all work.

    After an exception, work that has not begun is cancelled, and threads are left after PATIENCE.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._todo: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, function: Callable[[], Value]) -> Future[Value]:
        """Let a thread call a function; return its future."""
        future: Future[Value] = Future()
        self._todo.put((future, function))
        if len(self._threads) < self._count:
            thread = Thread(target=self._work, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._cancel()
        for _ in self._threads:
            self._todo.put(None)
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(None if kind is None else max(deadline - time.monotonic(), 0.0))
        _abandoned.extend(thread for thread in self._threads if thread.is_alive())

    def _cancel(self) -> None:
        try:
            while True:
                work = self._todo.get_nowait()
                if work is not None:
                    work[0].cancel()
        except Empty:
            pass

    def _work(self) -> None:
        while (work := self._todo.get()) is not None:
            future, function = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                value = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)
            del work, future, function  # so that a waiting thread keeps no reference to finished work


def call_in_thread(function: Callable[[], Value]) -> Value:
    """Call a function in a new thread, and return its value or raise its exception."""
    # Ctrl-C is raised within PATIENCE, even while a library ignores signals
    with ThreadPool(1, "call") as pool:
        return pool.submit(function).result()


def abandoned() -> bool:
    """Return whether a pool left a thread running."""
    # such a process must not exit normally: it may crash when the thread returns during shutdown
    return any(thread.is_alive() for thread in _abandoned)
