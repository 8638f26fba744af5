"""Wait for what comes on its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(ready: Callable[[], Any], seconds: float = 120.0, pause: float = 0.1) -> Any:
    """Call `ready` until it returns something true, and return that; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(pause)
    return value
