"""Compiler flags in environment variables; canonical, since keys hold them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

FLAGS = ("XLA_FLAGS", "NEURON_CC_FLAGS")
# flags that only name folders for files: in no key
PLACES = ("--cache_dir", "--xla_dump_to")

NEURON_COMPILER = {"MALLOC_ARENA_MAX": "64"}
"""Variables of a process that calls the Neuron compiler: without the cap glibc's arenas take the host's memory."""


def flags_around(names: tuple[str, ...] = FLAGS) -> dict[str, list[str]]:
    """Return {variable: its flags} of this process in canonical form, without empty ones."""
    given = {name: canonical_flags(os.environ.get(name, "")) for name in names}
    return {name: flags for name, flags in given.items() if flags}


def flags_added(name: str, flags: Sequence[str]) -> dict[str, str]:
    """Return {name: the variable's value with `flags` appended}; {} without flags."""
    return {name: " ".join([*filter(None, [os.environ.get(name)]), shlex.join(flags)])} if flags else {}


def check_flags(flags: Sequence[str]) -> None:
    """Raise ValueError for a flag that does not begin with "-", and for PLACES."""
    for flag in flags:
        if not flag.startswith("-"):
            raise ValueError(f"{flag!r} is no flag: write one as --name=value")
        if _name(flag) in PLACES:
            raise ValueError(f"{_name(flag)} only says where files go: leave it out")


def canonical_flags(text: str) -> list[str]:
    """Return flags with their values, such as ["--opt=1", "--level 2"], sorted by name, without PLACES."""
    flags: list[str] = []
    for word in shlex.split(text):
        if word.startswith("-") or not flags:
            flags.append(word)
        else:
            flags[-1] += f" {word}"
    # sorted by name alone: flags of one name keep their order
    return sorted((flag for flag in flags if _name(flag) not in PLACES), key=_name)


def _name(flag: str) -> str:
    return re.split("[= ]", flag, maxsplit=1)[0]
