"""JSON lines that a process may die while writing."""

from __future__ import annotations

import json

from tasks.artifact import Meta


def parsed(line: bytes) -> Meta | None:
    """The object in a line; None for an empty one, or for half of one, left by a killed process."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
