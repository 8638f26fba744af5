"""Leave Python's garbage collector out while many objects are made that stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Look for no garbage meanwhile; afterwards as before."""
    # each look visits what was made so far: among 100,000 tuples that takes longer than making them
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
