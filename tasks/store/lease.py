"""Leases.

<root>/leases/<key>/<fence>.json     create-only: owner, since, ttl
<root>/leases/<key>/<fence>.<token>  its heartbeat, rewritten every ttl/3 seconds

The highest fence is valid. Results do not depend on leases: two holders cost work, and the record created first counts.
Taking and releasing costs at least six small requests.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import cast

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.documents import Heartbeat, LeaseDocument
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.layout import document_name, read_shape
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.process import Process, lives_on, this_process

# A lease whose last heartbeat is older, by wall clocks, has ended: nobody needs to watch it.
FORGOTTEN_SECONDS = 86400.0

FALLBACK_TTL = 60.0
LONGEST_TTL = 3600.0
"""Seconds. What a lease says beyond does not count: it would hold its key for good."""
# early, so that `trnflow status` soon has a stage's progress
FIRST_BEAT_SECONDS = 3.0
WATCH_SECONDS = 2.0
"""Seconds between two looks of `acquire_watching`."""
SWEEP_SECONDS = 10.0
SWEEP = "sweep"
"""The run of a lease that is taken to remove what has ended."""
LAST_BEAT_SECONDS = 10.0
NOBODY = Process("?", "?", "?", 0, 0)


class LeaseLost(Exception):
    """Another run took over the lease; that run's result is used."""


@dataclass(frozen=True)
class Holder:
    """A lease as the store has it.

    Attributes:
        token: Random text of this lease.
        since: When it was taken, UTC.
        ttl: Seconds without a heartbeat until takeover.
        at: The last heartbeat, UTC by the holder's clock, or "".
        beat: The number of heartbeats.
    """

    fence: int
    token: str
    process: Process
    run: str
    attempt: str
    since: str
    ttl: float
    at: str = ""
    beat: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the lease has certainly ended."""
        if self.process.is_dead() and not lives_on(self.attempt):
            return True
        return self._silent_for(max(FORGOTTEN_SECONDS, 10 * self.ttl))

    @property
    def seems_silent(self) -> bool:
        """Whether the last heartbeat is older than ttl."""
        # by both machines' wall clocks, which is no proof
        return self._silent_for(self.ttl)

    def _silent_for(self, seconds: float) -> bool:
        try:
            silent = datetime.now(UTC) - datetime.fromisoformat(self.at or self.since)
        except (ValueError, TypeError):
            return False
        return silent.total_seconds() > seconds

    def __str__(self) -> str:
        return f"{self.process.host} pid {self.process.pid} (run {self.run}, since {self.since})"


class Waiter:
    """A run that needs the lease of a key. holder: the lease that `take` found last.

    patient: a holder whose process runs on this machine keeps its lease up to a day.
    """

    def __init__(
        self, backend: Backend, key: str, *, run: str, attempt: str, ttl: float, patient: bool = False
    ) -> None:
        self.holder: Holder | None = None
        self._backend = backend
        self._key = key
        self._run = run
        self._attempt = attempt
        self._ttl = ttl
        self._patient = patient
        self._unchanged_since = 0.0

    def acquire(self) -> Lease | None:
        """Try once to take the lease; return it, or None while another run has it."""
        newest = newest_holder(self._backend, self._key)
        if newest is not None and not self._is_over(newest):
            return None
        fence = newest.fence + 1 if newest else 1
        mine = Holder(fence, uuid.uuid4().hex[:12], this_process(), self._run, self._attempt, now(), self._ttl)
        document = json.dumps(asdict(mine) | {"process": mine.process._asdict()}, indent=1, sort_keys=True)
        if not self._backend.create(_name(self._key, fence), document.encode()):
            winner = _holder(self._backend, self._key, fence)
            if winner is None or winner.token != mine.token:  # otherwise this call created it
                return None
        lease = Lease(self._backend, self._key, mine)
        if newest is not None and _holder(self._backend, self._key, newest.fence) != replace(newest, beat=0, at=""):
            lease.release()  # another run took and released the lease in between: try again
            return None
        return lease

    def acquire_watching(
        self, *, wait: bool = False, tell: Callable[[Holder], None] = lambda holder: None
    ) -> Lease | None:
        """Take the lease; None if a living run has it and `wait` is false.

        wait: wait for a living holder, too, without limit; tell: called once with each holder that is waited for.
        """
        begun, announced = time.monotonic(), None
        while (lease := self.acquire()) is None:
            watched = time.monotonic() - begun
            holder = self.holder
            # a process killed on another machine leaves its lease behind: watched for its ttl, then taken over
            is_watched = holder is not None and holder.seems_silent and watched < holder.ttl + 2 * WATCH_SECONDS
            # a sweep ends within seconds; of a holder that has ended another process removes what is left
            is_passing = holder is not None and (holder.run == SWEEP or holder.is_over)
            if not wait and not is_watched and not is_passing:
                return None
            if holder is not None and not is_passing and holder.token != announced:
                announced = holder.token
                tell(holder)
            time.sleep(WATCH_SECONDS)
        return lease

    def _is_over(self, newest: Holder) -> bool:
        if newest != self.holder:
            self.holder, self._unchanged_since = newest, time.monotonic()
        silent = time.monotonic() - self._unchanged_since
        # by this process's monotonic clock; a paused process keeps a device's memory
        if silent >= newest.ttl and not (self._patient and newest.process.is_running_here()):
            return True
        return newest.is_over


class Lease:
    """A lease that this process holds. In a `with` statement a thread writes heartbeats; the end releases it."""

    def __init__(self, backend: Backend, key: str, mine: Holder) -> None:
        self._backend = backend
        self._key = key
        self._mine = mine
        self._lost = ""
        self._said: Meta = {}
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {key[:12]}", daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(StoreError, FileNotFoundError):  # a lease that is not removed expires
            self.release()

    @property
    def attempt(self) -> str:
        """The id of the attempt for which this lease was taken."""
        return self._mine.attempt

    def set_progress(self, **progress: Json) -> None:
        """Set the progress that the next heartbeats carry. Makes no request."""
        self._said = progress

    def raise_if_superseded(self) -> None:
        """Raise LeaseLost if an earlier `check` found a takeover. Makes no request."""
        if self._lost:
            raise LeaseLost(self._lost)

    def check(self) -> None:
        """Ask the store whether this lease is the newest; LeaseLost when it is not. Two or three requests."""
        newest = newest_holder(self._backend, self._key)
        if newest is None or newest.token != self._mine.token:
            who = newest or "another run"
            self._lost = f"{who} took over while this run was paused or cut off from the store"
        self.raise_if_superseded()

    def release(self) -> None:
        """Stop the heartbeats, and remove this lease's files and older leases'; after a takeover only its heartbeat."""
        self._left.set()
        if self._thread.is_alive():
            self._thread.join(LAST_BEAT_SECONDS)
        newest = newest_holder(self._backend, self._key)
        own = _name(self._key, self._mine.fence)
        if newest is None or newest.token != self._mine.token:
            self._backend.remove(_beat_name(self._key, self._mine))
        else:
            for name in self._backend.names(_folder(self._key)):
                fence = name.rsplit("/", 1)[1].split(".")[0]
                # another run may have taken over since
                is_newer = fence.isdecimal() and str(int(fence)) == fence and int(fence) > self._mine.fence
                if name != own and not is_newer:
                    self._backend.remove(name)
            self._backend.remove(own)
        self._backend.remove_empty(_folder(self._key))

    def _beat(self) -> None:
        count, pause = 0, min(FIRST_BEAT_SECONDS, self._mine.ttl / 3)
        while not self._left.wait(pause):
            count, pause = count + 1, self._mine.ttl / 3
            try:
                self.check()
                beat = json.dumps({"beat": count, "at": now(), "progress": self._said}).encode()
                self._backend.replace(_beat_name(self._key, self._mine), beat, durable=False)
            except LeaseLost:
                return
            except Exception:  # the next heartbeat may succeed; `check` finds a lost lease
                continue


def newest_holder(backend: Backend, key: str) -> Holder | None:
    """Return a key's newest lease with its last heartbeat, or None; it may have ended."""
    names = backend.names(_folder(key))
    for fence in sorted(_fences(names), reverse=True):
        holder = _holder(backend, key, fence)
        if holder is not None:  # otherwise it was released since the listing
            name = _beat_name(key, holder)
            beat = _heartbeat(backend, name) if name in names else Heartbeat()
            return replace(holder, beat=beat.get("beat", 0), at=beat.get("at", ""))
    return None


def live_leases(backend: Backend, *, silent: bool = False) -> Iterator[tuple[str, Holder, Meta]]:
    """Yield (key, lease, progress) of each key in work. silent: also of holders that may be dead."""
    for key in backend.folders("leases"):
        holder = newest_holder(backend, key)
        if holder is not None and not holder.is_over and (silent or not holder.seems_silent):
            beat = _heartbeat(backend, _beat_name(key, holder))
            yield key, holder, dict(beat.get("progress", {}))


def sweep_leases(backend: Backend) -> None:
    """Remove the leases that have certainly ended."""
    for key in backend.folders("leases"):
        newest = newest_holder(backend, key)
        if newest is None or newest.is_over:
            # taken over first, so that none in use is removed
            lease = Waiter(backend, key, run=SWEEP, attempt=SWEEP, ttl=SWEEP_SECONDS).acquire()
            if lease is not None:
                lease.release()
                backend.remove_empty(_folder(key), unfinished=True)


def _holder(backend: Backend, key: str, fence: int) -> Holder | None:
    """Return the lease with a fence, without its heartbeat, or None."""
    try:
        document = checked_lease(backend.read(_name(key, fence)))
    except FileNotFoundError:
        return None
    except ValueError:
        return Holder(fence, "", NOBODY, "?", "?", "?", FALLBACK_TTL)  # damaged: it expires like any other
    process = Process(**document["process"])
    ttl = min(document["ttl"], LONGEST_TTL)
    return Holder(fence, document["token"], process, document["run"], document["attempt"], document["since"], ttl)


def checked_lease(data: bytes) -> LeaseDocument:
    """Parse a lease. Raises ValueError if it is damaged."""
    document = cast(LeaseDocument, read_shape(data, LeaseDocument))
    if any("/" in name for name in (document["token"], document["run"], document["attempt"])):  # names of files
        raise ValueError("its token, run or attempt is a path")
    if not 0 < document["process"]["pid"] < 1 << 31:  # to `kill`, 0 and below are groups of processes
        raise ValueError(f"its pid is {document['process']['pid']}")
    if document["ttl"] <= 0:
        raise ValueError(f"its ttl is {document['ttl']} s")
    return document


def _heartbeat(backend: Backend, name: str) -> Heartbeat:
    """Return a heartbeat; {} without a sound one."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return cast(Heartbeat, read_shape(backend.read(name), Heartbeat))
    return {}


def _folder(key: str) -> str:
    return f"leases/{key}"


def _name(key: str, fence: int) -> str:
    return f"{_folder(key)}/{fence}.json"


def _beat_name(key: str, holder: Holder) -> str:
    return f"{_folder(key)}/{holder.fence}.{holder.token}"


def _fences(names: list[str]) -> list[int]:
    numbers = [document_name(name) for name in names if name.endswith(".json")]
    return [int(number) for number in numbers if number.isdecimal() and str(int(number)) == number]
