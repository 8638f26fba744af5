"""The present time as text, in the form in which the store's documents contain times."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Return the present time in UTC as ISO 8601 text to the second, such as `2026-01-31T12:00:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
