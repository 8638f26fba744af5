"""What is remarked about the names of labels: names that look alike, and names that are made of others."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

UNLIKE: dict[str, Callable[[str], str]] = {
    "surrounding blanks": str.strip,
    "blanks between words": lambda name: re.sub(r"\s+", " ", name),
    "capitals": str.casefold,
    "Unicode form": lambda name: unicodedata.normalize("NFKC", name),
    "zeros or + in front": lambda name: re.sub(r"^\s*\+?0*(?=\d)", "", name),
}
"""In what names of labels may differ that look alike, and what makes them equal."""
SAME = ({"yes", "y", "true", "t", "1"}, {"no", "n", "false", "f", "0"})
"""Spellings of yes and of no."""
MOST_SHOWN = 5
"""Groups of labels that look alike, of which so many are shown."""
MADE_OF_OTHERS, FEWEST = 0.2, 3
"""The share of the labels, and how many, that are made of others, at least, to be remarked: `science fiction` stands beside
`science` and `fiction` in its own right."""
_ZEROS = re.compile(r"^\+?0*(?=\d)")
_PARTS = re.compile(r"\s*[\s/+&_:]\s*")


def comparable(label: str) -> str:
    """Return a label without what the eye may overlook: capitals, blanks, Unicode form, zeros or + in front."""
    return _ZEROS.sub("", " ".join(unicodedata.normalize("NFKC", label).casefold().split()))


def alike(names: Sequence[str]) -> Iterator[str]:
    """Yield a remark for each group of labels that are `comparable`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(comparable(name), []).append(name)
    several = [same for same in groups.values() if len(same) > 1]
    for same in several[:MOST_SHOWN]:
        what = _difference(same)
        listed = " and ".join(f"{name!r}{'' if what == 'capitals' else _hidden(name)}" for name in same)
        yield f"labels that differ by {what} alone count as {len(same)}: {listed}"
    if (more := len(several) - MOST_SHOWN) > 0:
        yield f"labels that look alike: {more:,} more, such as {' and '.join(map(repr, several[-1]))}"


def say_the_same(names: Sequence[str]) -> Iterator[str]:
    """Yield a remark where all labels say yes or no, in more than one spelling of each."""
    groups = [[name for name in names if comparable(name) in words] for words in SAME]
    if all(groups) and sum(map(len, groups)) == len(names) > 2:
        yes, no = (", ".join(map(repr, group)) for group in groups)
        yield f"{len(names)} labels say yes ({yes}) or no ({no}): they count as {len(names)} classes; write one of each"


def made_of_others(names: Sequence[str]) -> Iterator[str]:
    """Yield a remark where many labels of rows that may have several are made of others, as `joy love` of joy and love."""
    known = {*names}
    made = [name for name in names if len(parts := _PARTS.split(name.strip())) > 1 and {*parts} <= known]
    if len(made) >= max(FEWEST, MADE_OF_OTHERS * len(names)):
        yield (
            f"{len(made):,} of {len(names):,} labels are made of others, such as {made[0]!r}: are these several labels of a row? "
            "between the labels of a cell stands a comma, a semicolon or |"
        )


def _difference(names: list[str]) -> str:
    """Return by what labels differ that are `comparable`: what is left when all else is made equal."""
    kinds = []
    for what in UNLIKE:
        rest = names
        for equal in (equal for other, equal in UNLIKE.items() if other != what):
            rest = [*map(equal, rest)]
        kinds += [what] * (len({*rest}) > 1)
    return " and ".join(kinds) or "kinds of blanks"


def _hidden(name: str) -> str:
    """Return the code points of a name that has combining or other invisible characters, else ""."""
    return "" if name.isascii() else f" ({' '.join(f'U+{ord(letter):04X}' for letter in name if letter > chr(127))})"
