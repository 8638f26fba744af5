"""Copy the events of a run to its store, `<root>/logs/<run>/<n>.jsonl`, so that other machines see its curves and notes."""

from __future__ import annotations

import contextlib

from trnflow.tasks.errors import StoreError
from trnflow.tasks.events import Event, Reader, RunState, log_file
from trnflow.tasks.store import Store


class LogCopy(Reader):
    """Copies what is new in a run's event log when a stage that ran, or the run, has ended. A store that can't be
    written costs the copy alone."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._offset = self._number = 0

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "run_ended" or (event["event"] == "stage_ended" and event["action"] == "ran"):
            with contextlib.suppress(StoreError, OSError):
                self._copy()

    def _copy(self) -> None:
        with log_file(self._store.home, self._run).open("rb") as file:
            file.seek(self._offset)
            lines = file.read()
        if lines and self._store.backend.create(f"logs/{self._run}/{self._number}.jsonl", lines):
            self._offset += len(lines)
            self._number += 1
