"""Follow a run until it ends: one of this machine by its log, one of another by the log's copy in the store."""

from __future__ import annotations

import time
from collections.abc import Iterator

from trnflow.tasks.errors import StoreError
from trnflow.tasks.events.event_types import Event
from trnflow.tasks.events.log_copy import COPY_SECONDS, EVENTS, LAST_COPY_SECONDS, SILENT_SECONDS, CopiedLogs
from trnflow.tasks.events.reading import follow
from trnflow.tasks.events.retention import is_written, log_file
from trnflow.tasks.events.state import RunState
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import live_leases

LOOK_SECONDS = 0.5
"""Between two looks at a log of this machine."""


class Follower:
    """Reads a run's events as they come.

    Attributes:
        state: The run's state after the events so far.
        is_here: Whether the run's log is on this machine.
        printed: {attempt: what its processes had printed more at the last look}, of a run of another machine.
        is_over: Whether the run has ended, or gives no sign of life.
    """

    def __init__(self, store: Store, run: str) -> None:
        self.state, self.printed, self.is_over = RunState(), dict[str, bytes](), False
        self._store, self._run, self._file, self._offset = store, run, log_file(store.home, run), 0
        self._copy = CopiedLogs(store.backend, run)
        self._sign: tuple[float | None, float] = None, time.monotonic()  # the last that changed, and when it was seen
        self._recorded: float | None = None
        self.is_here = self._file.exists()

    @property
    def outcome(self) -> str:
        """completed, failed, cancelled or killed, of a run that is over."""
        if self.state.outcome != "running":
            return self.state.outcome
        record = self._store.run(self._run)
        return str(record["outcome"]) if record and record.get("outcome") else "killed"

    def look(self) -> list[Event]:
        """Return the events since the last look. Raises ConfigError as `follow`, StoreError if the store does not answer for
        SILENT_SECONDS."""
        try:
            events = self._look_here() if self.is_here else self._look_there()
        except StoreError:
            if time.monotonic() - self._sign[1] > SILENT_SECONDS:
                raise
            return []
        for event in events:
            self.state.take(event)
        self.is_over = self.is_over or (self.state.outcome != "running" and not events)
        return events

    def events(self) -> Iterator[Event]:
        """Yield the events until the run is over. Raises as `look`."""
        while not self.is_over:
            yield from (events := self.look())
            if not events and not self.is_over:
                time.sleep(LOOK_SECONDS if self.is_here else COPY_SECONDS)

    def _look_here(self) -> list[Event]:
        is_alive = is_written(self._file)  # first: a run that ends meanwhile has written its end
        events, self._offset = follow(self._file, self._offset)
        self.is_over = not is_alive and not events
        return events

    def _look_there(self) -> list[Event]:
        new, present = self._copy.new(), time.monotonic()
        lines = new.pop(EVENTS, b"")
        self.printed = new
        if self._copy.signed != self._sign[0]:
            self._sign = self._copy.signed, present
        elif not lines and self._is_lost(present):
            self.is_over = not self._leases()
        return self._copy.parsed(lines)

    def _is_lost(self, present: float) -> bool:
        """Return whether nothing more is to be expected of a copy that did not change since the last look."""
        if self._store.run(self._run) is not None:  # on record just before the last copy
            self._recorded = self._recorded or present
            return present - self._recorded > LAST_COPY_SECONDS
        return self._copy.is_silent or present - self._sign[1] > SILENT_SECONDS

    def _leases(self) -> bool:
        return any(holder.run == self._run for _, holder, _ in live_leases(self._store.backend))
