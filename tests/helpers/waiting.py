"""Wait for what comes on its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def wait_for(ready: Callable[[], Any], seconds: float = 120.0, pause: float = 0.1) -> Any:
    """Call `ready` until it returns something true, and return that; AssertionError after `seconds`.

    A request in it that times out, as on a crowded machine, is made again.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(TimeoutError):
            if value := ready():
                return value
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(pause)
