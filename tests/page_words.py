"""Count the sentences of README and docs: `python -m tests.page_words` prints the table, `--list` the offenders too.

Code, tables, headings and the pages that programs write are left out; a link counts as its text.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
WRITTEN_BY_PROGRAMS = ("settings.md", "troubleshooting.md")
LONG = 35
"""Words, from which on a sentence is long."""


class Sentence(NamedTuple):
    page: str
    text: str

    @property
    def is_long(self) -> bool:
        return len(self.text.split()) > LONG

    @property
    def begins_with_of(self) -> bool:
        return self.text.lstrip("*").startswith("Of ")


def measure() -> list[Sentence]:
    """Return the sentences of all pages that people write."""
    pages = [*sorted(PROJECT.glob("*.md")), *sorted((PROJECT / "docs").glob("*.md"))]
    return [
        Sentence(str(page.relative_to(PROJECT)), sentence)
        for page in pages
        if page.name not in WRITTEN_BY_PROGRAMS
        for paragraph in paragraphs(page.read_text(encoding="utf-8"))
        for sentence in sentences(paragraph)
    ]


def paragraphs(text: str) -> Iterator[str]:
    """Yield each paragraph and item of a list in one line."""
    lines: list[str] = []
    for line in [*re.sub(r"(?ms)^```.*?^```$", "", text).splitlines(), ""]:
        starts = re.match(r"\s*(?:[-*]|\d+\.) +", line)
        ends = not line.strip() or line.startswith(("    ", "|", "#", "<", "!["))
        if (starts or ends) and lines:
            yield " ".join(lines)
            lines = []
        if not ends:
            lines.append(line[starts.end() :] if starts else line.strip())


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph. A colon does not end one."""
    plain = re.sub(r"\]\([^)]*\)", "]", paragraph)
    return [text for text in re.split(r"(?<=[.!?])\**\s+(?=[A-Z`*\[(])", plain) if text.strip()]


def main() -> None:
    arguments = argparse.ArgumentParser(description="Count the sentences of README and docs.")
    arguments.add_argument("--list", action="store_true", help="print each offender")
    listed = arguments.parse_args().list
    found = measure()
    print(f"{len(found):8,} sentences")
    for title, offenders in (
        (f"with more than {LONG} words", [sentence for sentence in found if sentence.is_long]),
        ("that begin with Of", [sentence for sentence in found if sentence.begins_with_of]),
    ):
        print(f"{len(offenders):8} {title}")
        print(*(f"         {page}: {text}\n" for page, text in offenders if listed), sep="", end="")


if __name__ == "__main__":
    main()
