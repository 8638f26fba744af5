"""Write all that a command prints on stderr as one JSON object a line, where the environment has TRNFLOW_LOG=json.

Each object has `time` (UTC), `level` ("info", "warning" or "error"), `stage` (null outside stages), `message`, and the figures
that the line is about, such as `step`, `of` and `loss`. Secrets are hidden in all texts; a number that is not finite is null.
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

from tasks.errors import ConfigError
from tasks.system.clock import now
from tasks.system.redaction import scrub_all

VARIABLE = "TRNFLOW_LOG"


class LogLines:
    """A text stream that writes each line it gets to `stream` as a JSON object.

    A text that holds several lines, such as a traceback, becomes one object. `record` writes an object with more fields.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unfinished = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Take a text, and write it as the message of an object once its last line ends. Returns the length of `text`."""
        with self._lock:
            self._unfinished += text
            if self._unfinished.endswith("\n"):
                self.end_line()
        return len(text)

    def end_line(self) -> None:
        """Write what was taken since the last end of a line."""
        with self._lock:
            lines, self._unfinished = self._unfinished.replace("\r\n", "\n").split("\n"), ""
            message = "\n".join(line.rpartition("\r")[2] for line in lines).strip()  # as a terminal shows it
            if message:
                self.record(message)

    def record(self, message: str, *, level: str = "info", stage: str | None = None, **figures: Any) -> None:
        """Write an object with these fields."""
        document = {"time": now(), "level": level, "stage": stage, "message": message, **figures}
        with self._lock:
            self._stream.write(f"{json.dumps(scrub_all(_finite(document)), allow_nan=False)}\n")
            self._stream.flush()

    def isatty(self) -> bool:
        """Return False: no progress bar is drawn on this stream."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def log_as_asked() -> Iterator[None]:
    """Context in which stderr is a `LogLines` if TRNFLOW_LOG is `json`.

    Raises:
        ConfigError: TRNFLOW_LOG is neither empty, nor `text`, nor `json`.
    """
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
    """Return a JSON value in which numbers that are not finite, for which JSON has no form, are None."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
