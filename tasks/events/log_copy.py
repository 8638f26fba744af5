"""The store's copy of a run's logs, which grows with the run: by it other machines see a run in progress.

<root>/logs/<run>/<n>.jsonl           the event log, in pieces of which the last is written again as it grows
<root>/logs/<run>/<attempt>/<n>.log   what the processes of an attempt print: of a long log the first piece and the last ones
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trnflow.tasks.errors import ReadOnlyStore, StoreError
from trnflow.tasks.events.event_types import Event
from trnflow.tasks.events.reading import parse_events
from trnflow.tasks.events.retention import log_file, run_folder
from trnflow.tasks.store.backend import Backend, Entry
from trnflow.tasks.system.redaction import scrub

COPY_SECONDS = 5.0
"""Between two looks at what is new in the event log."""
PRINTED_EVERY = 3
"""Looks between two at what stages print."""
PIECE_BYTES = 1 << 17
KEPT_PIECES = 8
"""Of a stage's log, beside the first."""
LONGEST_LINE = 1 << 20
"""Bytes; of a longer line of a stage's log nothing is copied."""
LONGEST_PIECE = 1 << 26
"""Bytes; a larger file is not read: nobody of this program wrote it."""
SIGN_SECONDS = 60.0
"""After this time without news the event log's last piece is written again: a sign that the run lives."""
SILENT_SECONDS = 3 * SIGN_SECONDS
"""A run without end whose last sign is older was killed, or is cut off from the store."""
LAST_COPY_SECONDS = 10.0
"""How long the end of a run waits for its last copy."""
AGAIN_SECONDS = 0.5

EVENTS = ""
"""Stands for the event log where others stand for an attempt."""
TOO_LONG = b"(a line of more than 1 MiB is not copied)\n"
_PIECE = re.compile(r"(?P<attempt>[^/]+)/(?P<printed>0|[1-9][0-9]*)\.log|(?P<events>0|[1-9][0-9]*)\.jsonl")


@contextlib.contextmanager
def copying(backend: Backend, home: Path, run: str) -> Iterator[None]:
    """Context in which a thread copies a run's logs after a second, every COPY_SECONDS, and once more at the end. A store
    that can't be written costs the copy, and one that does not answer LAST_COPY_SECONDS too."""
    copy, ended = LogCopy(backend, home, run), threading.Event()

    def work() -> None:
        pause = min(1.0, COPY_SECONDS)
        while not ended.wait(pause):
            copy.copy()
            pause = COPY_SECONDS
        copy.finish()

    thread = threading.Thread(target=work, name=f"log copy {run}", daemon=True)
    with contextlib.suppress(RuntimeError):  # no more threads
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join(LAST_COPY_SECONDS)


class LogCopy:
    """Copies what is new in a run's logs. What can't be read or written now is copied by a later call."""

    def __init__(self, backend: Backend, home: Path, run: str) -> None:
        self._backend, self._home, self._run = backend, home, run
        self._events = _Events(backend, log_file(home, run), run)
        self._printed: dict[str, _Printed] = {}
        self._looks = 0

    def copy(self) -> None:
        """Copy whole lines of the event log, and now and then of what stages print."""
        if self._looks % PRINTED_EVERY == 0:
            self._copy_printed(whole=False)
        self._looks += 1
        self._events.copy(whole=False)

    def finish(self) -> None:
        """Copy all, the event log last: who sees the run's end has the rest. Tries again for LAST_COPY_SECONDS."""
        until = time.monotonic() + LAST_COPY_SECONDS
        while not self._copy_printed(whole=True) and time.monotonic() < until:
            time.sleep(AGAIN_SECONDS)
        while not self._events.copy(whole=True) and time.monotonic() < until:
            time.sleep(AGAIN_SECONDS)

    def _copy_printed(self, *, whole: bool) -> bool:
        files = []
        with contextlib.suppress(OSError):
            files = sorted(run_folder(self._home, self._run).glob(f"{self._run}-*.log"))
        for file in files:
            if file.stem not in self._printed:
                self._printed[file.stem] = _Printed(self._backend, file, f"{self._run}/{file.stem}")
        # one that fails must not keep the others from being copied
        worked = [printed.copy(whole=whole) for printed in self._printed.values()]
        return all(worked)


class _Growing:
    """The copy of a file, in pieces of whole lines."""

    ends = "log"
    longest = -1

    def __init__(self, backend: Backend, file: Path, folder: str) -> None:
        self._backend, self._file, self._folder = backend, file, folder
        self._offset = self._number = 0  # in the file; of the last piece
        self._piece = b""  # as it is to be
        self._copied = 0  # bytes of it

    def copy(self, *, whole: bool) -> bool:
        """Copy what is new, with `whole` also a last line without end. Return False if that failed and may work later."""
        try:
            with self._file.open("rb") as file:
                while lines := self._next(file, whole=whole):
                    if len(self._piece) + len(lines) > PIECE_BYTES and self._piece:
                        self._write()
                        self._piece, self._copied, self._number = b"", 0, self._number + 1
                    self._piece += self._shown(lines)
                    self._offset = file.tell()
            self._write(durable=whole)
        except (FileNotFoundError, ReadOnlyStore):  # the home was removed; nobody may write there
            return True
        except (OSError, StoreError):
            return False
        return True

    def _write(self, *, durable: bool = False) -> None:
        if len(self._piece) > self._copied:
            self._backend.replace(self._name(self._number), self._piece, durable=durable)
            self._copied = len(self._piece)

    def _name(self, number: int) -> str:
        return f"logs/{self._folder}/{number}.{self.ends}"

    def _next(self, file: BinaryIO, *, whole: bool) -> bytes:
        """Return the next whole lines of a file, at most a piece unless one line is longer, and go behind them."""
        self._skip(file)
        file.seek(self._offset)
        lines = file.read(PIECE_BYTES)
        if len(lines) == PIECE_BYTES and not self._end_of(lines):
            lines += file.readline(self.longest)
        end = self._end_of(lines) or (len(lines) if whole or 0 < self.longest < len(lines) else 0)
        file.seek(self._offset + end)
        return lines[:end]

    def _end_of(self, lines: bytes) -> int:
        return lines.rfind(b"\n") + 1

    # the event log is copied whole
    def _skip(self, file: BinaryIO) -> None:
        pass

    def _shown(self, lines: bytes) -> bytes:
        return lines


class _Events(_Growing):
    """The copy of the event log, which has no secrets."""

    ends = "jsonl"

    def __init__(self, backend: Backend, file: Path, folder: str) -> None:
        super().__init__(backend, file, folder)
        self._signed = time.monotonic()

    def _write(self, *, durable: bool = False) -> None:
        # written again without news
        if time.monotonic() - self._signed >= SIGN_SECONDS:
            self._copied = 0
        if len(self._piece) > self._copied:
            super()._write(durable=durable)
            self._signed = time.monotonic()


class _Printed(_Growing):
    """The copy of what stages print."""

    longest = LONGEST_LINE

    def __init__(self, backend: Backend, file: Path, folder: str) -> None:
        super().__init__(backend, file, folder)
        self._kept: list[int] = []

    def _write(self, *, durable: bool = False) -> None:
        super()._write(durable=durable)
        if self._number and self._copied and self._number not in self._kept:
            self._kept.append(self._number)
        with contextlib.suppress(StoreError):  # it is tried again with the next piece
            while len(self._kept) > KEPT_PIECES:
                self._backend.remove(self._name(self._kept[0]))
                del self._kept[0]

    def _skip(self, file: BinaryIO) -> None:
        # what would be removed is not written first
        behind = file.seek(0, 2) - KEPT_PIECES * PIECE_BYTES
        if self._number == 0 or behind <= self._offset:
            return
        file.seek(behind)
        file.readline()
        # a number that is left out tells a reader that lines are
        self._number += 1 + (file.tell() - self._offset) // PIECE_BYTES
        self._offset, self._piece, self._copied = file.tell(), b"", 0

    def _end_of(self, lines: bytes) -> int:
        # progress bars end with \r
        return max(lines.rfind(b"\n"), lines.rfind(b"\r")) + 1

    def _shown(self, lines: bytes) -> bytes:
        if len(lines) > LONGEST_LINE:
            return TOO_LONG
        return scrub(lines.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


class CopiedLogs:
    """Reads the store's copy of a run's logs as it grows.

    Attributes:
        signed: When the event log was last written, in seconds since 1970 by the store's clock; None without a copy.
    """

    def __init__(self, backend: Backend, run: str) -> None:
        self.signed: float | None = None
        self._backend, self._run = backend, run
        self._taken: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))  # {attempt: (piece, bytes of it)}

    def new(self) -> dict[str, bytes]:
        """Return {attempt: what was added since the last call}, in the order in which they began, the event log's under
        EVENTS. Raises StoreError."""
        listed = self._listed()
        begun = {attempt: min(entry.time for entry in pieces.values()) for attempt, pieces in listed.items()}
        added = {
            attempt: self._added(attempt, listed[attempt]) for attempt in sorted(listed, key=lambda each: begun[each])
        }
        return {attempt: lines for attempt, lines in added.items() if lines}

    def events(self) -> list[Event]:
        """Return the events since the last call. Raises StoreError, ConfigError as `follow`."""
        return self.parsed(self._added(EVENTS, self._listed()[EVENTS]))

    def tail(self) -> list[Event]:
        """Return the last events, enough to see what runs now. Raises as `events`."""
        pieces = self._listed()[EVENTS]
        return self.parsed(b"".join(self._read(pieces[number]) for number in sorted(pieces)[-2:]))

    def parsed(self, lines: bytes) -> list[Event]:
        """Return the events of lines. Raises ConfigError as `follow`."""
        return parse_events(lines, f"{self._backend.root}/logs/{self._run}")

    @property
    def is_silent(self) -> bool:
        """Whether the last sign that a call saw is long past, by the clocks of the store and of this machine."""
        return self.signed is None or time.time() - self.signed > SILENT_SECONDS

    def _listed(self) -> dict[str, dict[int, Entry]]:
        listed: dict[str, dict[int, Entry]] = defaultdict(dict)
        for entry in self._backend.entries(f"logs/{self._run}"):
            match = _PIECE.fullmatch(entry.name.removeprefix(f"logs/{self._run}/"))
            if match and entry.size <= LONGEST_PIECE:
                listed[match["attempt"] or EVENTS][int(match["printed"] or match["events"])] = entry
                if not match["attempt"]:
                    self.signed = max(self.signed or 0.0, entry.time)
        return listed

    def _added(self, attempt: str, pieces: dict[int, Entry]) -> bytes:
        added = []
        for number in sorted(pieces):
            last, taken = self._taken[attempt]
            if number < last or (number == last == max(pieces) and pieces[number].size <= taken):
                continue
            # one before the last is complete by now, whatever the listing says
            piece = self._read(pieces[number])
            added += [b"(...)\n"] if number > last + 1 else []
            added.append(piece[taken if number == last else 0 :])
            self._taken[attempt] = number, len(piece)
        return b"".join(added)

    def _read(self, entry: Entry) -> bytes:
        with contextlib.suppress(FileNotFoundError):  # of a long log, or collected, since the listing
            return self._backend.read(entry.name)
        return b""
