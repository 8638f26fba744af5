"""Parse lines of JSON files with one object a line. The last line of such a file may be incomplete, because the process
that wrote it may have been killed."""

from __future__ import annotations

import json
from typing import Any


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None for an empty line, for an incomplete line and for JSON that is no
    object."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
