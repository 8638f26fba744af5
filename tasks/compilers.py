"""Flags that reach a compiler through the environment: they change results, so they stand in the key, in a canonical form."""

from __future__ import annotations

import os
import re
import shlex

from tasks.artifact import Meta

FLAGS = ("XLA_FLAGS", "NEURON_CC_FLAGS")
PLACES = ("--cache_dir", "--xla_dump_to")
"""Flags that only say where files go."""


def flags_around(names: tuple[str, ...] = FLAGS) -> Meta:
    """The flags in this process's environment, by variable; without those that are empty."""
    given = {name: canonical_flags(os.environ.get(name, "")) for name in names}
    return {name: flags for name, flags in given.items() if flags}


def canonical_flags(text: str) -> list[str]:
    """Flags with their values, sorted by name: their order says nothing, but among those of one name. Without PLACES."""
    flags: list[str] = []
    for word in shlex.split(text):
        if word.startswith("-") or not flags:
            flags.append(word)
        else:
            flags[-1] += f" {word}"
    return sorted((flag for flag in flags if _name(flag) not in PLACES), key=_name)


def _name(flag: str) -> str:
    return re.split("[= ]", flag, maxsplit=1)[0]
