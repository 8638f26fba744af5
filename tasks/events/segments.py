"""The store's copy of a run's logs, which grows with the run: by it other machines see a run in progress.

<root>/logs/<run>/<n>.jsonl           the event log, in segments of which the last is written again as it grows
<root>/logs/<run>/<attempt>/<n>.log   what the processes of an attempt print: of a long log the first and the last segments
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from trnflow.tasks.errors import StoreError
from trnflow.tasks.events.event_types import Event
from trnflow.tasks.events.reading import parse_events
from trnflow.tasks.events.retention import log_file, run_folder
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.system.redaction import scrub

COPY_SECONDS = 5.0
"""Between two looks at what is new."""
SEGMENT_BYTES = 1 << 17
KEPT_SEGMENTS = 8
"""Of a stage's log, beside the first."""
SIGN_SECONDS = 60.0
"""After this time without news the event log's last segment is written again: a sign that the run lives."""
SILENT_SECONDS = 3 * SIGN_SECONDS
"""A run without end whose last sign is older was killed, or is cut off from the store."""
LAST_COPY_SECONDS = 10.0
"""How long the end of a run waits for its last copy."""

EVENTS = ""
"""Stands for the event log where others stand for an attempt."""
_SEGMENT = re.compile(r"(?:(?P<attempt>[^/]+)/)?(?P<number>[0-9]+)\.(?:jsonl|log)")


@contextlib.contextmanager
def copying(backend: Backend, home: Path, run: str) -> Iterator[None]:
    """Context in which a thread copies a run's logs after a second, every COPY_SECONDS, and once more at the end. A store
    that can't be written costs the copy alone."""
    copy, ended = LogCopy(backend, home, run), threading.Event()

    def work() -> None:
        pause = min(1.0, COPY_SECONDS)
        while not ended.wait(pause):
            copy.copy()
            pause = COPY_SECONDS
        copy.copy(whole=True)

    thread = threading.Thread(target=work, name=f"log copy {run}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_COPY_SECONDS)


class LogCopy:
    """Copies what is new in a run's logs. What can't be read or written now is copied by a later call."""

    def __init__(self, backend: Backend, home: Path, run: str) -> None:
        self._backend, self._home, self._run = backend, home, run
        self._files: dict[str, _Growing] = {}
        self._signed = time.monotonic()

    def copy(self, *, whole: bool = False) -> None:
        """whole: also last lines without end."""
        for attempt, file in self._sources():
            growing = self._files.setdefault(attempt, _Growing(self._backend, file, self._run, attempt))
            is_due = attempt == EVENTS and time.monotonic() - self._signed >= SIGN_SECONDS
            with contextlib.suppress(StoreError, OSError):
                if growing.copy(whole=whole, again=is_due) and attempt == EVENTS:
                    self._signed = time.monotonic()

    def _sources(self) -> Iterator[tuple[str, Path]]:
        yield EVENTS, log_file(self._home, self._run)
        for file in sorted(run_folder(self._home, self._run).glob(f"{self._run}-*.log")):
            yield file.stem, file


class _Growing:
    """The copy of one file."""

    def __init__(self, backend: Backend, file: Path, run: str, attempt: str) -> None:
        self._backend, self._file, self._run, self._attempt = backend, file, run, attempt
        self._begin = self._length = self._number = 0  # of the last segment: in the file, and as copied

    def copy(self, *, whole: bool, again: bool) -> bool:
        """Copy what is new; again: also if nothing is. Return whether something was written."""
        written = False
        while lines := self._next(whole=whole):
            if len(lines) > self._length or again:
                text = lines if self._attempt == EVENTS else _scrubbed(lines)
                self._backend.replace(_name(self._run, self._attempt, self._number), text, durable=whole)
                self._length, written, again = len(lines), True, False
            size = self._file.stat().st_size - self._begin
            if size < SEGMENT_BYTES or size == len(lines):
                break
            self._begin, self._length, self._number = self._begin + len(lines), 0, self._number + 1
            if self._attempt != EVENTS and self._number > KEPT_SEGMENTS:
                self._backend.remove(_name(self._run, self._attempt, self._number - KEPT_SEGMENTS))
        return written

    def _next(self, *, whole: bool) -> bytes:
        with self._file.open("rb") as file:
            file.seek(self._begin)
            lines = file.read(SEGMENT_BYTES)
        end = lines.rfind(b"\n") + 1
        if len(lines) == SEGMENT_BYTES:
            return lines[:end] or lines
        return lines if whole else lines[:end]


class CopiedLogs:
    """Reads the store's copy of a run's logs as it grows."""

    def __init__(self, backend: Backend, run: str) -> None:
        self._backend, self._run = backend, run
        self._taken: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))  # {attempt: (segment, bytes of it)}
        self.signed: float | None = None
        """When the event log was last written, in seconds since 1970 by the store's clock."""

    def logs(self) -> dict[str, bytes]:
        """Return {attempt: what its processes have printed since the last call}. Raises StoreError."""
        listed = self._listed()
        listed.pop(EVENTS, None)
        return {attempt: added for attempt in sorted(listed) if (added := self._added(attempt, listed[attempt]))}

    def events(self) -> list[Event]:
        """Return the events since the last call. Raises StoreError, ConfigError as `follow`."""
        listed = self._listed()
        return parse_events(self._added(EVENTS, listed[EVENTS]), self._place)

    def tail(self) -> list[Event]:
        """Return the last events, enough to see what runs now. Raises as `events`."""
        last = sorted(self._listed()[EVENTS])[-2:]
        return parse_events(b"".join(self._backend.read(_name(self._run, EVENTS, each)) for each in last), self._place)

    @property
    def _place(self) -> str:
        return f"{self._backend.root}/logs/{self._run}"

    def _listed(self) -> dict[str, dict[int, int]]:
        """Return {attempt: {number: bytes}} of the segments."""
        listed: dict[str, dict[int, int]] = defaultdict(dict)
        for entry in self._backend.entries(f"logs/{self._run}"):
            if match := _SEGMENT.fullmatch(entry.name.removeprefix(f"logs/{self._run}/")):
                listed[match["attempt"] or EVENTS][int(match["number"])] = entry.size
                if not match["attempt"]:
                    self.signed = max(self.signed or 0.0, entry.time)
        return listed

    @property
    def is_silent(self) -> bool:
        """Whether the last sign of the run that a call saw is long past."""
        return self.signed is None or time.time() - self.signed > SILENT_SECONDS

    def is_over(self) -> bool:
        """Whether the run has ended, or is silent. Raises as `events`."""
        last = self.tail()[-1:]
        return self.is_silent or (bool(last) and last[0]["event"] == "run_ended")

    def _added(self, attempt: str, sizes: dict[int, int]) -> bytes:
        added = []
        for number in sorted(sizes):
            last, taken = self._taken[attempt]
            if number < last or (number == last == max(sizes) and sizes[number] <= taken):
                continue
            with contextlib.suppress(FileNotFoundError):  # of a long log, removed since the listing
                # a segment before the last is complete by now, whatever the listing says
                segment = self._backend.read(_name(self._run, attempt, number))
                added.append(segment[taken if number == last else 0 :])
                self._taken[attempt] = number, len(segment)
        return b"".join(added)


def _name(run: str, attempt: str, number: int) -> str:
    return f"logs/{run}/{number}.jsonl" if attempt == EVENTS else f"logs/{run}/{attempt}/{number}.log"


def _scrubbed(lines: bytes) -> bytes:
    return scrub(lines.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
