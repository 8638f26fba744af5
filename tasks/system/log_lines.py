"""Write everything that a command prints on stderr as JSON objects, one object a line, if the environment variable
TRNFLOW_LOG is `json`.

Each object has `time` (UTC), `level` ("info", "warning" or "error"), `stage` (null outside stages), `message`, and the figures
that the message reports, such as `step`, `of` and `loss`. Secrets are hidden in all texts; a number that is not finite
is null.
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
from trnflow.tasks.system.redaction import scrub_all

VARIABLE = "TRNFLOW_LOG"


class LogLines:
    """A text stream that takes the place of stderr: everything that is written to it is passed on to `stream` as JSON
    objects, each on one line.

    A text with several lines, such as a traceback, becomes one object. `record` writes an object with more fields.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unfinished = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Add a text to the unfinished message, which is not written yet. If the text ends with a newline, write the
        message as a JSON object. Returns the length of `text`."""
        with self._lock:
            self._unfinished += text
            if self._unfinished.endswith("\n"):
                self.end_line()
        return len(text)

    def end_line(self) -> None:
        """Write the unfinished message (the text that `write` has received but not yet written) as a JSON object; do
        nothing if the text is blank. Of a line that was overwritten with carriage returns (a progress bar), only the
        last state is written."""
        with self._lock:
            lines, self._unfinished = self._unfinished.replace("\r\n", "\n").split("\n"), ""
            message = "\n".join(line.rpartition("\r")[2] for line in lines).strip()  # as a terminal shows it
            if message:
                self.record(message)

    def record(self, message: str, *, level: str = "info", stage: str | None = None, **figures: Any) -> None:
        """Write one JSON object with these fields and the present time, with secrets hidden, and flush.

        stage: the stage that the message is about, None outside stages; figures: more fields, as JSON values."""
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
    """Context in which `sys.stderr` is a `LogLines` if TRNFLOW_LOG is `json`; else stderr stays as it is. At the end of
    the context an unfinished message is written.

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
