"""Garbage collection: move the files that no root leads to into the trash, and delete old ones from trash and
quarantine.

Runs may write meanwhile, without a lock (see `trash`): the store is listed for records and others, for blobs, and for what
must come back. The next collection completes a killed one. A dry run reports the same.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.hash_cache import in_threads
from trnflow.tasks.store.backend import Backend, Entry, is_unfinished
from trnflow.tasks.store.garbage.mark import KINDS, ORDER, RESULT, Policy, View, mark
from trnflow.tasks.store.garbage.trash import THREADS, TRASH, bring_back, into_trash, read_trash

LOOKS = 5
QUARANTINE = "quarantine"
CLOCK = f"{TRASH}/clock"


@dataclass
class FileCounts:
    """Files and bytes, by kind of file (`blobs`) or reason to stay (`runs`)."""

    files: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, entry: Entry) -> None:
        """Count one file and its bytes."""
        self.files[kind] += 1
        self.bytes[kind] += entry.size

    def to_json(self) -> Meta:
        """Return {kind: {"files": number of files, "bytes": sum of their sizes}}."""
        return {kind: {"files": self.files[kind], "bytes": self.bytes[kind]} for kind in sorted(self.files)}


@dataclass
class Collected:
    """What a garbage collection did, or in a dry run would do.

    Attributes:
        kept: By the root that needs them: `roots`, `runs`, `jobs`, `attempts` or `young` (within the grace period).
        swept: Moved to the trash, by kind.
        purged: Deleted for good, from `trash` or `quarantine`.
        restored: Names brought back from the trash; empty in a dry run.
    """

    dry_run: bool
    kept: FileCounts = field(default_factory=FileCounts)
    swept: FileCounts = field(default_factory=FileCounts)
    purged: FileCounts = field(default_factory=FileCounts)
    restored: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        """Return what `trnflow gc --json` prints."""
        return {
            "dry_run": self.dry_run,
            "kept": self.kept.to_json(),
            "swept": self.swept.to_json(),
            "purged": self.purged.to_json(),
            "restored": len(self.restored),
            "bytes": self.swept.bytes.total(),
            "purged_bytes": self.purged.bytes.total(),
        }


@dataclass
class Survey:
    """What to move or delete, from one listing. kept: (why, file) of each file that stays."""

    kept: list[tuple[str, Entry]]
    restore: list[str]
    sweep: list[Entry]
    purge: list[Entry]


def collect(backend: Backend, policy: Policy, *, yes: bool) -> Collected:
    """Collect a store's garbage. yes: if false, change nothing. Raises StoreError if a root can't be read."""
    return _Collector(backend, policy).collect(yes=yes)


class _Collector:
    def __init__(self, backend: Backend, policy: Policy) -> None:
        self._backend = backend
        self._policy = policy
        self._read: dict[Entry, bytes] = {}

    def collect(self, *, yes: bool) -> Collected:
        now = self._now() if yes else time.time()
        first = self._look(now)
        done = Collected(not yes)
        for why, entry in first.kept:
            done.kept.add(why, entry)
        for entry in first.purge:
            done.purged.add(entry.name.split("/")[0], entry)
        swept = {entry.name: entry for entry in first.sweep}
        if yes:
            swept = self._apply(first, now, done)
        for name, entry in swept.items():
            done.swept.add(_kind(name), entry)
        return done

    def _apply(self, first: Survey, now: float, done: Collected) -> dict[str, Entry]:
        done.restored += self._restore(first)
        self._purge(first.purge)
        swept = self._sweep([entry for entry in first.sweep if not entry.name.startswith("blobs/")], now)
        second = self._look(now)
        done.restored += self._restore(second)
        # files that became garbage since the first listing are left to the next collection, so that a dry run reports
        # the same
        first_names = {entry.name for entry in first.sweep}
        swept |= self._sweep([e for e in second.sweep if e.name.startswith("blobs/") and e.name in first_names], now)
        done.restored += self._restore(self._look(now))
        return {name: entry for name, entry in swept.items() if name not in done.restored}

    def _now(self) -> float:
        """Return the time by the clock of the store's machine: hosts' clocks may differ by hours."""
        self._backend.replace(CLOCK, b"")
        return next(entry.time for entry in self._backend.entries(TRASH) if entry.name == CLOCK)

    def _look(self, now: float) -> Survey:
        for _ in range(LOOKS):
            with contextlib.suppress(FileNotFoundError):  # another collection moved a listed file: list again
                return self._survey(now)
        raise StoreError("the store changes too fast to see what it holds", "let one garbage collection run at a time")

    def _survey(self, now: float) -> Survey:
        view = self._view()
        kept = mark(view, self._policy, now)
        garbage = [entry for name, entry in view.present.items() if name not in kept and _kind(name)]
        lost = [name for name in kept if name in view.trashed]
        lasting = {view.trashed[name].name for name in lost}
        expired = [
            entry
            for entry in self._backend.entries(TRASH) + self._backend.entries(QUARANTINE)
            if now - _since(entry) >= self._policy.grace and entry.name not in lasting and entry.name != CLOCK
        ]
        order = {kind: place for place, kind in enumerate(KINDS)}
        return Survey(
            [(why, view.present[name]) for name, why in kept.items() if name in view.present],
            sorted(lost, key=lambda name: -order.get(name.split("/")[0], 0)),
            sorted(garbage, key=lambda entry: order[entry.name.split("/")[0]]),
            expired,
        )

    def _view(self) -> View:
        # The trash is listed first: a file that is moved back in the meantime is then listed twice and not missed.
        trashed = read_trash(self._backend.entries(TRASH))
        present = {entry.name: entry for kind in (*KINDS, "roots", "leases") for entry in self._backend.entries(kind)}
        for name in present:
            trashed.pop(name, None)
        where = trashed | present
        if self._backend.local is None:
            read = ("runs/", "attempts/", "roots/")
            names = [name for name in present if name.startswith(read) or name.endswith((ORDER, RESULT))]
            in_threads(lambda name: self._bytes(where[name]), names, THREADS)
        return View(present, trashed, lambda name: self._bytes(where[name]))

    def _bytes(self, entry: Entry) -> bytes:
        if entry not in self._read:
            self._read[entry] = self._backend.read(entry.name)
        return self._read[entry]

    def _restore(self, survey: Survey) -> list[str]:
        if not survey.restore:
            return []
        lost = set(bring_back(self._backend, survey.restore))
        return [name for name in survey.restore if name not in lost]

    def _sweep(self, entries: list[Entry], now: float) -> dict[str, Entry]:
        records = [entry for entry in entries if entry.name.startswith("records/")]
        others = [entry for entry in entries if not entry.name.startswith("records/")]
        moved: dict[str, Entry] = {}
        for part in (records, others):
            done = in_threads(lambda entry: self._move(entry.name, into_trash(entry.name, now)), part, THREADS)
            moved |= {entry.name: entry for entry, is_moved in zip(part, done, strict=True) if is_moved}
        return moved

    def _move(self, name: str, to: str) -> bool:
        with contextlib.suppress(FileNotFoundError):  # another collection was faster
            self._backend.move(name, to)
            return True
        return False

    def _purge(self, entries: list[Entry]) -> None:
        in_threads(lambda entry: self._backend.remove(entry.name), entries, THREADS)
        if self._backend.local is not None:
            for batch in {entry.name.split("/")[1] for entry in entries if entry.name.startswith(f"{TRASH}/")}:
                if batch.isdigit():
                    with contextlib.suppress(FileNotFoundError):  # empty folders
                        self._backend.remove(f"{TRASH}/{batch}")


def _kind(name: str) -> str:
    """Return a file's kind, or "" for one that is never removed."""
    top = name.split("/")[0]
    if top not in KINDS:
        return ""
    return "unfinished" if is_unfinished(name) else top


def _since(entry: Entry) -> float:
    """Return when a file was moved to trash or quarantine, in seconds since 1970, by its name."""
    batch = entry.name.split("/")[1]
    if batch.isdigit():
        return int(batch) / 1000
    ending = entry.name.rsplit(".", 1)[-1]
    return int(ending) / 1e9 if ending.isdigit() and len(ending) > 15 else entry.time
