"""Array files are read in many threads at once: numpy reads a header by `ast`, which in Python 3.11 fails there."""

from __future__ import annotations

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from trnflow.tasks.system.arrays import load_array


def give_way(phase: str, info: dict[str, int]) -> None:
    """Let another thread go on inside a collection of garbage, as a finalizer of Python code does."""
    time.sleep(0)


def test_headers_are_read_in_threads_while_garbage_is_collected(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(300, dtype=np.int32))
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    gc.callbacks.append(give_way)
    try:
        with ThreadPoolExecutor(4) as pool:
            sums = [*pool.map(lambda _: int(load_array(tmp_path / "a.npy", mapped=True).sum()), range(1000))]
    finally:
        gc.callbacks.remove(give_way)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert set(sums) == {44850}


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_array(tmp_path / "a.npy")
