"""Parts of a model that a setting names: parts of parameters' names that follow each other, "*" for any one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.partition_specs import covers


def parts_named(patterns: Iterable[str], names: Sequence[str], model: str, setting: str) -> dict[str, str]:
    """Return {parameter below a named part: the first pattern that names it}. Raises ModelError for one that names nothing."""
    found: dict[str, str] = {}
    for pattern in patterns:
        named = [name for name in names if has_part(name.split("."), pattern)]
        if not named:
            parts = sorted({part for name in names for part in name.split(".")[:-1] if not part.isdecimal()})
            near = difflib.get_close_matches(pattern.rpartition(".")[2], parts, n=3)
            raise ModelError(
                f"{setting}: {pattern} names no part of {model}",
                f"use {' or '.join(near) if near else 'some of ' + ', '.join(parts)}",
            )
        found = {**dict.fromkeys(named, pattern), **found}
    return found


def has_part(parts: list[str], pattern: str) -> bool:
    """Return whether parts that follow each other fit a pattern."""
    size = len(pattern.split("."))
    return any(covers(pattern, ".".join(parts[at : at + size])) for at in range(len(parts)))
