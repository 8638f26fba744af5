"""Show texts from data and store: a terminal obeys control characters, and a newline begins what looks like our own line."""

from __future__ import annotations

import re

# C0 and C1, what ends a line or changes the order of writing in Unicode, and halves of pairs, which no UTF-8 has
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_IN_LINE = re.compile(f"[\\t\\n{_CONTROLS}]")


def printable(text: str) -> str:
    r"""Return a text of several lines with its control characters but tab and newline as escapes, such as `\x1b`."""
    return _CONTROL.sub(_escaped, text)


def one_line(text: object) -> str:
    r"""Return a text as one line: with all of its control characters as escapes, newlines as `\n`."""
    return _IN_LINE.sub(_escaped, str(text))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
