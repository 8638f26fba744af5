"""A clock that other processes see moved: a library that is loaded before the C library adds seconds to the time.

Files keep the kernel's times, and the monotonic clock stays.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

YEAR = 365 * 86400


class MovedClock:
    """Moves the clock of processes that have `environ`, while they run."""

    def __init__(self, folder: Path) -> None:
        self._offset, library = folder / "offset", folder / "moved_clock.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self.environ = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(self._offset)}
        self.move(0)

    def move(self, seconds: int) -> None:
        """Let the time be so many seconds later than it is."""
        self._offset.write_text(str(seconds))
