"""Let the kernel hold which files a process reads (Landlock, Linux 5.13 or newer): native libraries call no audit hook."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from functools import cache

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH, READ_FILE = 1, 1, 1 << 2
NO_NEW_PRIVS = 38


@cache
def is_there() -> bool:
    """Return whether this kernel has Landlock."""
    return sys.platform == "linux" and bool(_libc().syscall(CREATE_RULESET, None, 0, VERSION) > 0)


def read_only_these(paths: Iterable[str]) -> None:
    """Let this process, and what it starts, open only these files, and those below these folders, for reading.

    Folders can be listed, and files written, as before. Paths that are not there are left out. Raises OSError.
    """
    libc = _libc()
    # names of files and what is written bring nothing into a result that no key knows
    ruleset = _call(libc.syscall(CREATE_RULESET, struct.pack("Q", READ_FILE), ctypes.c_size_t(8), 0))
    try:
        for path in paths:
            with contextlib.suppress(OSError):
                _allow(libc, ruleset, path)
        _call(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
        _call(libc.syscall(RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", READ_FILE, place), 0))
    finally:
        os.close(place)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(result: int) -> int:
    """Return the result of a call; raise OSError for -1."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
