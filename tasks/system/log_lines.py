"""Write what a command prints on stderr as one JSON object a line, if TRNFLOW_LOG is `json`.

Fields: `time` (UTC), `level`, `stage` (or null), `message`, and figures such as `step`, `of`, `loss`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.redaction import map_leaves, scrub_all

VARIABLE = "TRNFLOW_LOG"


class LogLines:
    """A stream in place of stderr: each message, or traceback, becomes a JSON object on `stream`, without secrets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unfinished = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Add to the unfinished message; a newline at the end completes it."""
        with self._lock:
            self._unfinished += text
            if self._unfinished.endswith("\n"):
                self.end_line()
        return len(text)

    def end_line(self) -> None:
        """Write the unfinished message, unless it is blank."""
        with self._lock:
            lines, self._unfinished = self._unfinished.replace("\r\n", "\n").split("\n"), ""
            # of a progress bar the last state alone, as a terminal shows it
            message = "\n".join(line.rpartition("\r")[2] for line in lines).strip()
            if message:
                self.record(message)

    def record(self, message: str, *, level: str = "info", stage: str | None = None, **figures: Any) -> None:
        """Write one JSON object at once. figures: more fields."""
        document = {"time": now(), "level": level, "stage": stage, "message": message, **figures}
        with self._lock:
            self._stream.write(f"{json.dumps(scrub_all(map_leaves(_finite, document)), allow_nan=False)}\n")
            self._stream.flush()

    def isatty(self) -> bool:
        """Return False: no progress bar is drawn on this stream."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def log_as_asked() -> Iterator[None]:
    """Replace `sys.stderr` by a `LogLines` if TRNFLOW_LOG is `json`. Raises ConfigError for an unknown value."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "text", "json"):
        raise ConfigError(f"{VARIABLE} is {asked!r}, and can be text or json", f"export {VARIABLE}=json, or unset it")
    if asked != "json" or isinstance(sys.stderr, LogLines):
        yield
        return
    lines = LogLines(sys.stderr)
    with contextlib.redirect_stderr(lines):
        try:
            yield
        finally:
            lines.end_line()


def _finite(value: Any) -> Any:
    """Return a value; None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
