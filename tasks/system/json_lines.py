"""Files of one JSON object a line."""

from __future__ import annotations

import json
from typing import Any


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return a line's JSON object; None for anything else."""
    # a kill may leave the last line incomplete
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
