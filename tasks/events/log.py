"""Write the event log of a run, `<home>/runs/<run>/events.jsonl`, and call the readers in this process.

One process writes a log, under flock: a log without lock and `run_ended` is that of a killed run. Each line is one
`write` with O_APPEND, so a kill can only tear the last one. A full disk costs events, never the run.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.documents import RunRecord
from trnflow.tasks.errors import PlacedError, StoreError, is_interruption, unexpected
from trnflow.tasks.events.event_types import SCHEMA, Event
from trnflow.tasks.events.retention import FILE, prune_logs, run_folder
from trnflow.tasks.events.state import RunState, present
from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.redaction import map_leaves, scrub_all

PROGRESS_SECONDS = 1.0
"""The shortest time between two lines of progress of a stage."""
READER_SECONDS = 0.1
"""The shortest time between two reports of progress to readers in this process."""
TEXT_LENGTH = 4096
"""Characters of a text; of a longer one the rest is cut. Settings are not cut."""
NO_PROGRESS_BYTES = 16 << 20
"""A file of this size gets no more progress."""
FEW_METRICS_BYTES = 32 << 20
"""A file of this size gets every second event of metrics."""

Emit = Callable[[Meta], None]


class Reader:
    """Base class of what reads events in the process that writes them, such as the progress on a terminal.

    Attributes:
        critical: Whether an error of `read` stops the run. Other readers are left out after their first error.
        note: A sentence for the user once the run has ended, or "".
        warning: A sentence for the user at once; the log takes it after `read`.
    """

    critical = False
    note = ""
    warning = ""

    def read(self, event: Event, state: RunState) -> None:
        """Take an event, in the thread that wrote it. state: the run's state after the event."""

    def heed(self) -> None:
        """Called again and again while the run waits for another one; an error ends the wait, and the run."""


class EventLog:
    """The events of one run: written to a file within `writing`, and passed to readers always.

    readers: called with each event; state: the run's state after all events; lost: lines that could not be written.
    """

    def __init__(self, *readers: Reader) -> None:
        self.readers = list(readers)
        self.state = RunState()
        self.lost = 0
        self._descriptor: int | None = None
        self._lock = threading.RLock()  # a reader may write an event, and parts may end in several threads
        self._next = 0
        self._bytes = 0
        self._metrics = 0
        self._is_torn = False
        self._ended = False
        self._depth = 0
        self._begun = time.monotonic()
        self._shown: dict[tuple[str, str], float] = {}

    @property
    def is_open(self) -> bool:
        """Whether this is within `writing`."""
        return self._depth > 0

    @contextlib.contextmanager
    def also(self, *readers: Reader) -> Iterator[None]:
        """Context in which these readers, too, are called with each event."""
        self.readers += readers
        try:
            yield
        finally:
            self.readers = [reader for reader in self.readers if reader not in readers]

    @contextlib.contextmanager
    def writing(self, home: Path, run: str, *, spent: float = 0.0, **begun: Json) -> Iterator[EventLog]:
        """Context in which the events go to the run's file, from `run_begun` to `run_ended`. Within another `writing`
        nothing happens: a run inside a run is part of its events.

        Args:
            spent: Seconds that the run has taken before, such as for its plan.
            begun: The other fields of `run_begun`.

        Raises:
            StoreError: Another process writes this run's log.
        """
        self._depth += 1
        if self._depth > 1:
            try:
                yield self
            finally:
                self._depth -= 1
            return
        try:
            self._open(home, run)
            self._begun -= spent
            fields: Meta = {"parent": None, "price_per_hour": 0.0, **begun}
            self.write("run_begun", schema=SCHEMA, run=run, **fields)
            yield self
        except BaseException as error:
            self.end(error)
            raise
        else:
            self.end()
        finally:
            self._depth -= 1
            self._close()

    def end(self, error: BaseException | None = None, notes: list[str] | None = None) -> list[str]:
        """Write `run_ended`, unless that was done before, or this run is part of another one. Returns the readers' notes.
        error: why the run ended early."""
        if self._ended or self._depth > 1:
            return []
        self._ended = True
        self.write("run_ended", **self._ending(error, notes or []))
        return [reader.note for reader in self.readers if reader.note]

    def result(self, error: BaseException | None, notes: list[str]) -> RunRecord:
        """Return the run record, as if the run ended now. error: why the run ends early."""
        ended = copy.copy(self.state)
        ended.take(
            cast(Event, {"n": -1, "time": present(), "event": "run_ended", **scrub_all(self._ending(error, notes))})
        )
        return ended.record()

    def _ending(self, error: BaseException | None, notes: list[str]) -> Meta:
        """Return the fields of `run_ended`."""
        seconds = round(time.monotonic() - self._begun, 3)
        return {
            "outcome": "completed" if error is None else "cancelled" if is_interruption(error) else "failed",
            "error": None if error is None else error_document(error),
            "seconds": seconds,
            "dollars": round(seconds / 3600 * self.state.price_per_hour, 4),
            "lost": self.lost,
            "notes": notes,
        }

    def write(self, event: str, *, at: float | None = None, **fields: Json) -> None:
        """Add an event: fold it, write it and call the readers.

        Args:
            at: Seconds since 1970; None for now.

        Raises:
            Exception: The error of a critical reader.
        """
        with self._lock:
            document: Meta = {"n": self._next, "time": present() if at is None else round(at, 3), "event": event}
            clean = scrub_all(fields)
            document |= clean if event == "run_begun" else map_leaves(_cut, clean)
            happened = cast(Event, document)
            self.state.take(happened)
            if event == "progress":
                if self._bytes < NO_PROGRESS_BYTES and self._is_due(document, "file", PROGRESS_SECONDS):
                    self._write_line(document)
                if not self._is_due(document, "readers", READER_SECONDS):
                    return
            elif event != "metrics" or self._has_room_for_metrics():
                self._write_line(document)
            for reader in tuple(self.readers):
                self._call(reader, happened)

    def note(self, text: str, *, stage: str | None = None, level: str = "info") -> None:
        """Add a message for the user; nothing for an empty text. level: info or warning."""
        if text:
            self.write("note", stage=stage, level=level, text=text)

    def stage(self, stage: str, *, key: str, attempt: str, settings: Meta) -> Emit:
        """Write `stage_begun`, and return the function that is called with the reports of the stage's process, as
        `Workdir` makes them. Metrics and figures get the cost so far, where the hardware has a price."""
        self.write("stage_begun", stage=stage, key=key, attempt=attempt, settings=settings)
        begun = time.monotonic()

        def emit(report: Meta) -> None:
            for event, fields, at in events_of(report):
                if event in ("metrics", "figures") and self.state.price_per_hour:
                    dollars = (time.monotonic() - begun) / 3600 * self.state.price_per_hour
                    fields["values"] = {**fields["values"], "dollars": round(dollars, 6)}
                self.write(event, at=at, stage=stage, **fields)

        return emit

    def heed(self) -> None:
        """Ask the readers whether to go on, while the run waits."""
        for reader in tuple(self.readers):
            reader.heed()

    def sync(self) -> None:
        """Make all written lines survive a crash of the machine."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)

    def _open(self, home: Path, run: str) -> None:
        self.state = RunState()
        self._next = self._metrics = self._bytes = self.lost = 0
        self._ended, self._begun = False, time.monotonic()
        self._shown.clear()
        folder = run_folder(home, run)
        try:
            make_home(home)
            folder.mkdir(parents=True, exist_ok=True)
            prune_logs(home, keep=run)
            self._descriptor = os.open(folder / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # such as a full disk: the run goes on without a file
            self._descriptor = None
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._close()
            raise StoreError(
                f"another process writes the event log {folder / FILE}", "two runs can't have one id: run it again"
            ) from error
        except OSError:  # a filesystem without locks: its runs are never seen as killed
            pass
        self._bytes = os.fstat(self._descriptor).st_size
        self._is_torn = self._bytes > 0 and os.pread(self._descriptor, 1, self._bytes - 1) != b"\n"

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_due(self, document: Meta, where: str, pause: float) -> bool:
        """Return whether progress is to be passed on: the last of a count always is."""
        now, name = time.monotonic(), (where, f"{document['stage']} {document['unit']}")
        if document["done"] < document["total"] and now - self._shown.get(name, float("-inf")) < pause:
            return False
        self._shown[name] = now
        return True

    def _has_room_for_metrics(self) -> bool:
        self._metrics += 1
        return self._bytes < FEW_METRICS_BYTES or self._metrics % 2 == 0

    def _write_line(self, document: Meta) -> None:
        self._next += 1
        if self._descriptor is None:
            self.lost += 1
            return
        line = _line_of(document)
        try:
            written = os.write(self._descriptor, b"\n" + line if self._is_torn else line)
        except OSError:
            self.lost += 1
            return
        whole = len(line) + self._is_torn
        self._bytes += written
        self.lost += written < whole
        self._is_torn = written < whole  # the disk became full in the middle of the line
        if document["event"] == "stage_ended" and document["action"] == "ran":
            self.sync()

    def _call(self, reader: Reader, event: Event) -> None:
        try:
            reader.read(event, self.state)
            if text := reader.warning:
                reader.warning = ""
                self.note(text, level="warning")
        except Exception as error:
            if reader.critical:
                raise
            if reader in self.readers:
                self.readers.remove(reader)
                what = f"{type(error).__name__}: {error}"
                self.note(f"{type(reader).__name__} shows no more of this run: {what}", level="warning")


def events_of(report: Meta) -> Iterator[tuple[str, Meta, float | None]]:
    """Yield (event, fields, time) for each entry of a stage's report: progress, metrics, figures, part, warn, info."""
    if "progress" in report:
        counted = dict(report["progress"])
        known = {name: counted.pop(name) for name in ("done", "total", "unit")}
        yield "progress", {**known, "values": counted}, None
    if "metrics" in report:
        metrics = report["metrics"]
        yield "metrics", {"step": metrics["step"], "values": dict(metrics["values"])}, metrics.get("time")
    if "figures" in report:
        yield "figures", {"values": dict(report["figures"])}, None
    if "part" in report:
        yield "part", {"number": report["part"], "artifact": report["artifact"]}, None
    for name, level in (("warn", "warning"), ("info", "info")):
        if name in report:
            yield "note", {"level": level, "text": report[name]}, None


def _cut(value: Any) -> Json:
    """Return a value; of a text at most TEXT_LENGTH characters."""
    return f"{value[: TEXT_LENGTH - 1]}…" if isinstance(value, str) and len(value) > TEXT_LENGTH else value


def _line_of(document: Meta) -> bytes:
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
    except ValueError:  # a loss that is not a number, which JSON does not have
        text = json.dumps(map_leaves(_finite, document), allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"


def error_document(error: BaseException) -> PlacedError:
    if isinstance(error, Exception):
        return unexpected(error).placed()
    return {"stage": None, "type": type(error).__name__, "message": str(error), "fix": ""}


def _finite(value: Any) -> Json:
    """Return a value; the text NaN, Infinity or -Infinity for such a number."""
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
