"""One item ahead, in order, whatever becomes of it."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from trnflow.tasks.training.batches.prefetch import prefetch


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_all_come_in_order(count: int) -> None:
    assert list(prefetch(lambda n: n * n, range(count))) == [n * n for n in range(count)]


def test_the_next_is_made_while_this_one_is_used_and_no_other() -> None:
    made = {n: threading.Event() for n in range(4)}

    def make(n: int) -> int:
        made[n].set()
        assert threading.current_thread() is not threading.main_thread()
        return n

    with closing(prefetch(make, range(4))) as items:
        assert next(items) == 0
        assert made[1].wait(timeout=10) and not made[2].is_set()
        assert next(items) == 1
        assert made[2].wait(timeout=10) and not made[3].is_set()


def test_an_error_comes_where_its_item_would_have() -> None:
    items = prefetch(lambda n: 1 // (2 - n), range(4))
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_items_are_made_one_after_another() -> None:
    """What makes them keeps an open file, or a place in one."""
    second, busy = threading.Event(), [0]

    def make(n: int) -> int:
        busy[0] += 1
        if n == 1:
            second.set()
        alone = busy[0] == 1
        second.wait(timeout=0.2)
        busy[0] -= 1
        return alone

    assert [*prefetch(make, range(2))] == [True, True]
