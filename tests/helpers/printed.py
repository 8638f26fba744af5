"""What a page shows as printed, beside what a command prints."""

from __future__ import annotations

import re


def blurred(text: str) -> list[str]:
    """Return a text's lines without what differs from run to run: numbers, digests, how wide a column is."""
    return [" ".join(re.sub(r"\b\d[\w.:-]*|\b[0-9a-f]{12}\b|-{2,}", "#", line).split()) for line in text.splitlines()]


def unprinted(shown: str, printed: str) -> list[str]:
    """Return the lines of a page that no line of what was printed begins with, but for numbers."""
    lines = blurred(printed)
    return [line for line in blurred(shown) if line and not any(out.startswith(line) for out in lines)]
