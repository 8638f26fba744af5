"""The present time as text."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Return the UTC time to the second: `2026-01-31T12:00:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
