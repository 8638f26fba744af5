"""A filesystem that is really full: a small tmpfs. A visible skip where it can't be mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """`folder`, with `size` bytes of room."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "trnflow-test", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"can't mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, leave: int = 0) -> Path:
    """Take all room but `leave` bytes; returns the file that holds it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as handle, suppress(OSError):
        while True:
            handle.write(bytes(4096))
    with ballast.open("r+b") as handle:
        handle.truncate(max(0, ballast.stat().st_size - leave))
    return ballast
