"""Read lists that stand in a cell as text, as pandas, numpy and people write them."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from typing import Any

from trnflow.tasks.system.json_numbers import loads

_NO_COMMA = re.compile(r"""(['"])\s+(?=['"])""")
_NAN = re.compile(r"(?<=[\[(,\s])nan(?=[\]),\s])")
_BARE = re.compile(r"\[[^][]*\]|\{[^{}:]*\}", re.DOTALL)
_NUMBERS = re.compile(r"\s*-?[\d.]+(\s+-?[\d.]+)*\s*")


def written_list(text: str) -> list[Any] | None:
    """Return the list of names or numbers that a text is in Python or JSON, as pandas writes lists into CSV; else None."""
    some = any_list(text)
    return None if some is None or any(isinstance(each, list | dict | tuple) for each in some) else some


def any_list(text: str) -> list[Any] | None:
    """Return what `written_list` does, also of lists that hold lists or objects."""
    text = text.strip()
    if text[:1] + text[-1:] not in ("[]", "()", "{}"):
        return None
    # numpy writes no commas, and Python would join the texts; pandas writes a missing one as nan
    ways = ((loads, text), (ast.literal_eval, _NO_COMMA.sub(r"\1, ", text)), (ast.literal_eval, _NAN.sub("None", text)))
    for read, written in ways:
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = read(written)
            is_list = isinstance(value, list | tuple) or value == {}
            return sorted(value, key=str) if isinstance(value, set) else [*value] if is_list else None
    return text[1:-1].split() if text[0] == "[" and _NUMBERS.fullmatch(text[1:-1]) else None


def bare(text: str) -> str:
    """Return a text without the brackets of a list whose names have no quotes."""
    text = text.strip()
    return text[1:-1] if _BARE.fullmatch(text) else text
