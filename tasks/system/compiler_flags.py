"""Read compiler flags from environment variables such as XLA_FLAGS, and build values for these variables. Flags can
change results, so they are part of stage keys (the hashes by which stages' earlier results are found), in a canonical
form.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

FLAGS = ("XLA_FLAGS", "NEURON_CC_FLAGS")
PLACES = ("--cache_dir", "--xla_dump_to")
"""Flags that only name folders for files. They are not part of keys."""


def flags_around(names: tuple[str, ...] = FLAGS) -> dict[str, list[str]]:
    """Return the compiler flags that this process has in its environment: {environment variable: its flags, sorted by
    name}. Variables without flags are left out, and so are `--cache_dir` and `--xla_dump_to`, which only name folders.

    names: the variables to read."""
    given = {name: canonical_flags(os.environ.get(name, "")) for name in names}
    return {name: flags for name, flags in given.items() if flags}


def flags_added(name: str, flags: Sequence[str]) -> dict[str, str]:
    """Return {name: new value} for an environment variable: the variable's value in this process with `flags` appended,
    each quoted for a shell. {} if `flags` is empty. The environment itself is not changed."""
    return {name: " ".join([*filter(None, [os.environ.get(name)]), shlex.join(flags)])} if flags else {}


def check_flags(flags: Sequence[str]) -> None:
    """Check compiler flags from a recipe. Raises ValueError for a text that does not begin with "-", and for
    `--cache_dir` and `--xla_dump_to`, which only name folders."""
    for flag in flags:
        if not flag.startswith("-"):
            raise ValueError(f"{flag!r} is no flag: write one as --name=value")
        if _name(flag) in PLACES:
            raise ValueError(f"{_name(flag)} only says where files go: leave it out")


def canonical_flags(text: str) -> list[str]:
    """Split the text of an environment variable into flags with their values, such as ["--opt=1", "--level 2"]. They
    are sorted by name; flags of one name keep their order. `--cache_dir` and `--xla_dump_to`, which only name folders,
    are left out."""
    flags: list[str] = []
    for word in shlex.split(text):
        if word.startswith("-") or not flags:
            flags.append(word)
        else:
            flags[-1] += f" {word}"
    return sorted((flag for flag in flags if _name(flag) not in PLACES), key=_name)


def _name(flag: str) -> str:
    return re.split("[= ]", flag, maxsplit=1)[0]
