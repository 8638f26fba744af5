"""A pool of threads: all work is done, or after an error no more is begun."""

from __future__ import annotations

import threading
import time

import pytest

from trnflow.tasks.system import threads
from trnflow.tasks.system.threads import ThreadPool, call_in_thread


def test_the_end_waits_for_all_work() -> None:
    with ThreadPool(2, "pool") as pool:
        futures = [pool.submit(lambda number=number: (time.sleep(0.01), number)[1]) for number in range(8)]  # type: ignore[misc]
    assert [future.result(0) for future in futures] == list(range(8))
    with pytest.raises(ZeroDivisionError):
        call_in_thread(lambda: 1 / 0)


def test_after_an_error_work_that_soon_ends_is_waited_for() -> None:
    ended, begun = list[int](), threading.Event()
    with pytest.raises(KeyboardInterrupt), ThreadPool(1, "pool") as pool:
        pool.submit(lambda: (begun.set(), time.sleep(0.01), ended.append(1)))  # type: ignore[func-returns-value]
        begun.wait(30)
        raise KeyboardInterrupt
    assert ended == [1] and not threads.abandoned()


def test_after_an_error_nothing_begins_and_a_thread_at_work_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.1)
    go_on, begun = threading.Event(), threading.Event()
    with pytest.raises(KeyboardInterrupt), ThreadPool(1, "pool") as pool:
        pool.submit(lambda: (begun.set(), go_on.wait(30)))
        waiting = pool.submit(lambda: None)
        begun.wait(30)
        raise KeyboardInterrupt
    assert waiting.cancelled() and threads.abandoned()
    go_on.set()
    for thread in threads._abandoned:
        thread.join(30)
    assert not threads.abandoned()
