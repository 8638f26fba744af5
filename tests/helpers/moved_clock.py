"""A clock that other processes see moved: a library that is loaded before the C library adds seconds to the time.

Files keep the kernel's times, and the monotonic clock stays.
"""

from __future__ import annotations

from pathlib import Path

from tests.helpers.preloads import built

YEAR = 365 * 86400


class MovedClock:
    """Moves the clock of processes that have `environ`, while they run."""

    def __init__(self, folder: Path) -> None:
        self._offset, library = folder / "offset", built(Path(__file__).with_suffix(".c"), folder)
        self.environ = {"LD_PRELOAD": library, "MOVED_CLOCK": str(self._offset)}
        self.move(0)

    def move(self, seconds: int) -> None:
        """Let the time be so many seconds later than it is."""
        self._offset.write_text(str(seconds))
