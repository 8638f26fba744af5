"""When a command has taken too much processor time, by the page that it shares with the process that measures."""

from __future__ import annotations

import os
import time
from mmap import mmap

import pytest

from trnflow.tasks.launch import memory_watch
from trnflow.tasks.launch.memory_watch import _LIMIT, _late, limited_time


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> mmap:
    page = mmap(-1, _LIMIT.size)
    monkeypatch.setattr(memory_watch, "_page", page)
    return page


def test_a_limit_counts_from_what_was_used_and_ends_with_its_block(page: mmap) -> None:
    assert _late(os.getpid(), page) == 0.0
    with pytest.raises(ValueError), limited_time(1.0):
        end, seconds = _LIMIT.unpack_from(page)
        assert seconds == 1.0 and end - time.process_time() == pytest.approx(1.0, abs=0.2)
        assert _late(os.getpid(), page) == 0.0
        raise ValueError
    assert _LIMIT.unpack_from(page) == (0.0, 0.0)


def test_time_of_the_system_counts_too(page: mmap) -> None:
    with open("/dev/zero", "rb") as zeros:
        while os.times().system < 0.1:
            zeros.read(1 << 20)
    user, system = os.times()[:2]
    _LIMIT.pack_into(page, 0, user + system / 2, 3.0)
    assert _late(os.getpid(), page) == 3.0
    _LIMIT.pack_into(page, 0, user + system + 5, 3.0)
    assert _late(os.getpid(), page) == 0.0
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    _LIMIT.pack_into(page, 0, 1e-9, 3.0)
    assert _late(child, page) == 0.0, "it has ended"
