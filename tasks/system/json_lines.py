"""Parse files of one JSON object a line, whose last line may be incomplete after a kill."""

from __future__ import annotations

import json
from typing import Any


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return a line's JSON object; None for an empty or incomplete line, and for JSON that is no object."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
