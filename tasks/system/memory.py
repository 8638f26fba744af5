"""The memory of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def machine_memory() -> int:
    """Return the bytes of this machine, or of this process's cgroup (v1 or v2) if that has less."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """Yield the limits of this process's cgroup and of those above it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        root, name = Path("/sys/fs/cgroup", kinds), "memory.limit_in_bytes" if kinds else "memory.max"
        own = root / path.lstrip("/")
        # in a container the path may be the host's, of which only the root is seen
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                yield from _limit(folder / name)


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():  # else "max"
        yield int(text)
