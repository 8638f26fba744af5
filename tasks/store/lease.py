"""Leases: when several runs need the same result, the run that holds the lease makes it, and the others wait. Leases
are files in the store, so they need neither locks, nor compare-and-swap, nor a common clock.

A key is the hash of everything that decides a stage's result; a lease is the right to make the key's result. (Devices
have keys, too: there a lease is the right to use the device.) The files of a lease:

<root>/leases/<key>/<fence>.json     create-only: owner, since, ttl; the fence is the lease's fencing number: 1, 2, ...
<root>/leases/<key>/<fence>.<token>  its heartbeat, rewritten every ttl/3; ttl (time to live) is a number of seconds

The lease with the highest fencing number is valid. A lease ends when its holder releases it, when a run on the same
machine finds the holder's process dead, or when a waiting run has seen no heartbeat for the lease's ttl (by its own
monotonic clock). The run that then creates the file with the next number has the lease. A holder that was paused finds
the newer number when it checks its lease. Released leases are removed.

Results do not depend on leases: if two runs hold a lease of one key at once, both make the result, and the record that
is created first counts. Taking and releasing a lease costs at least six small requests to the store. While a run waits,
each check of the other run's lease costs up to three requests.
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
from types import TracebackType
from typing import Any

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.layout import document_name
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.process import Process, lives_on, this_process

FORGOTTEN_SECONDS = 86400.0
"""A lease whose last heartbeat is older than this, by wall clocks, has ended: no waiter needs to watch it for its ttl."""

FALLBACK_TTL = 60.0
FIRST_BEAT_SECONDS = 3.0
"""The first heartbeat comes early, so that `trnflow status` has the progress of a stage that just began."""
WATCH_SECONDS = 2.0
"""The pause between two looks of `take_watching`."""
SWEEP_SECONDS = 10.0
LAST_BEAT_SECONDS = 10.0
NOBODY = Process("?", "?", "?", 0, 0)


class LeaseLost(Exception):
    """Raised when another run took over the lease (the right to make a key's result) while this run was paused or could
    not reach the store. The result of the other run is used."""


@dataclass(frozen=True)
class Holder:
    """A lease as it is written in the store: which run makes the result of a key (the hash that identifies a stage's
    result).

    Attributes:
        fence: the fencing number, from 1 on; of several leases of a key the one with the highest number is valid.
        token: random text, different for each lease.
        process: the process that holds the lease.
        run, attempt: the ids of the run and of the attempt (one try to run a stage) for which the lease was taken.
        since: when the lease was taken, UTC.
        ttl: seconds without a heartbeat after which others may take over.
        at: the last heartbeat, UTC by the holder's clock; empty before the first.
        beat: the number of heartbeats.
    """

    fence: int
    token: str
    process: Process
    run: str
    attempt: str
    since: str
    ttl: float
    at: str = ""
    beat: Any = 0

    @property
    def is_over(self) -> bool:
        """Whether the lease (the right to make a key's result) has certainly ended: the processes of its run and its
        stage are dead, or its last heartbeat is a day (or 10 times `ttl`, if that is more) old. False if this is not
        certain."""
        return (self.process.is_dead() and not lives_on(self.attempt)) or self._is_forgotten()

    @property
    def seems_silent(self) -> bool:
        """Whether the last heartbeat, or else the start of the lease (the right to make a key's result), is more than
        `ttl` seconds ago, by this machine's clock and that of the holder. The clocks may differ, so this is no proof
        that the holder is dead."""
        return self._silent_for(self.ttl)

    def _is_forgotten(self) -> bool:
        return self._silent_for(max(FORGOTTEN_SECONDS, 10 * self.ttl))

    def _silent_for(self, seconds: float) -> bool:
        try:
            silent = datetime.now(UTC) - datetime.fromisoformat(self.at or self.since)
        except (ValueError, TypeError):
            return False
        return silent.total_seconds() > seconds

    def __str__(self) -> str:
        return f"{self.process.host} pid {self.process.pid} (run {self.run}, since {self.since})"


class Waiter:
    """A run that needs the lease of a key: the right to make the result that the key identifies. Call `take` again and
    again until it returns the lease; `take_watching` does this.

    run, attempt: the ids that the lease will name; ttl: seconds without a heartbeat after which others may take over
    the lease. holder: the lease of another run that `take` found last, or None. patient: whether a holder without
    heartbeats keeps its lease, up to a day, while its process runs on this machine: used for the lease of a device,
    whose memory a paused process keeps.
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

    def take(self) -> Lease | None:
        """Try once to take the lease (the right to make a key's result), by creating its file in the store. Return the
        lease, or None while another run has it. If the key already has a lease in the store, the attribute `holder` is
        set to that lease."""
        newest = newest_holder(self._backend, self._key)
        if newest is not None and not self._is_over(newest):
            return None
        fence = newest.fence + 1 if newest else 1
        mine = Holder(fence, uuid.uuid4().hex[:12], this_process(), self._run, self._attempt, now(), self._ttl)
        if not self._backend.create(_name(self._key, fence), _to_json(mine)):
            winner = _holder(self._backend, self._key, fence)
            if winner is None or winner.token != mine.token:  # otherwise this call created it
                return None
        lease = Lease(self._backend, self._key, mine)
        if newest is not None and _holder(self._backend, self._key, newest.fence) != _without_beat(newest):
            lease.release()  # another run took and released the lease in between: try again
            return None
        return lease

    def take_watching(
        self, *, wait: bool = False, tell: Callable[[Holder], None] = lambda holder: None
    ) -> Lease | None:
        """Take the lease (the right to make a key's result) and return it; wait for it if needed. Return None if a
        living run has the lease and `wait` is false.

        A holder whose last heartbeat is older than its ttl (time to live, in seconds) is always watched for that time,
        and its lease is then taken over if no heartbeat came (unless the waiter is `patient` and the holder's process
        runs on this machine): a killed process of another machine or container leaves its lease behind.

        Args:
            wait: Whether to wait, without a time limit, for a living holder, too.
            tell: Called once with each holder that is waited for.
        """
        begun, told = time.monotonic(), None
        while (lease := self.take()) is None:
            watched = time.monotonic() - begun
            holder = self.holder
            is_watched = holder is not None and holder.seems_silent and watched < holder.ttl + 2 * WATCH_SECONDS
            if not wait and not is_watched:
                return None
            if holder is not None and holder.token != told:
                told = holder.token
                tell(holder)
            time.sleep(WATCH_SECONDS)
        return lease

    def _is_over(self, newest: Holder) -> bool:
        if newest != self.holder:
            self.holder, self._unchanged_since = newest, time.monotonic()
        silent = time.monotonic() - self._unchanged_since
        if silent >= newest.ttl and not (self._patient and newest.process.is_running_here()):
            return True
        return newest.is_over


class Lease:
    """A lease that this process holds: the right to make a key's result, which one run has at a time. Used in a `with`
    statement, it writes heartbeats to the store, in a thread, until the statement ends; then the lease is released."""

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(StoreError, FileNotFoundError):  # a lease that is not removed expires
            self.release()

    @property
    def attempt(self) -> str:
        """The id of the attempt (one try to run a stage) for which this lease, the right to make a key's result, was
        taken."""
        return self._mine.attempt

    def tell(self, **progress: Json) -> None:
        """Set the stage's progress that the following heartbeats of this lease write to the store, where `trnflow
        status` reads it. Makes no request. progress: figures by name, as JSON; they replace those of the last call."""
        self._said = progress

    def heed(self) -> None:
        """Raise LeaseLost if an earlier `check`, such as the one before each heartbeat, found that another run took
        over this lease (the right to make a key's result). Makes no request, so a takeover since that check goes
        unnoticed."""
        if self._lost:
            raise LeaseLost(self._lost)

    def check(self) -> None:
        """Ask the store whether this lease (the right to make a key's result) is the newest of its key; raise LeaseLost
        when it is not, since another run then makes the result. Costs two or three requests."""
        newest = newest_holder(self._backend, self._key)
        if newest is None or newest.token != self._mine.token:
            who = newest or "another run"
            self._lost = f"{who} took over while this run was paused or cut off from the store"
        self.heed()

    def release(self) -> None:
        """Give up the lease, the right to make a key's result: stop the heartbeats, and remove the lease's files and
        those of older leases of the key. If another run took over the lease, remove only this lease's heartbeat.

        The file of this lease is removed last, so that a paused holder of an older lease still finds a newer lease when
        it checks.
        """
        self._left.set()
        if self._thread.is_alive():
            self._thread.join(LAST_BEAT_SECONDS)
        newest = newest_holder(self._backend, self._key)
        own = _name(self._key, self._mine.fence)
        if newest is None or newest.token != self._mine.token:
            self._backend.remove(_beat_name(self._key, self._mine))
        else:
            for name in self._backend.names(_folder(self._key)):
                if name != own and not self._is_newer(name):  # another run may have taken over since
                    self._backend.remove(name)
            self._backend.remove(own)
        self._backend.remove_empty(_folder(self._key))

    def _is_newer(self, name: str) -> bool:
        """Whether a file of the key's leases, a lease or a heartbeat, belongs to a lease after this one."""
        fence = name.rsplit("/", 1)[1].split(".")[0]
        return fence.isdigit() and str(int(fence)) == fence and int(fence) > self._mine.fence

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
    """Return the lease of a key (which run makes the key's result) with the highest fencing number, the newest, with
    its last heartbeat; None when the key has no lease. The lease may have ended: see `Holder.is_over`."""
    names = backend.names(_folder(key))
    for fence in sorted(_fences(names), reverse=True):
        holder = _holder(backend, key, fence)
        if holder is not None:  # otherwise it was released since the listing
            beat = _beat_name(key, holder)
            found = _read(backend, beat) if beat in names else None
            return replace(holder, beat=found.get("beat", 0), at=str(found.get("at", ""))) if found else holder
    return None


def live_leases(backend: Backend, *, silent: bool = False) -> Iterator[tuple[str, Holder, Meta]]:
    """Yield (key, lease, progress) for every key whose result a run is making now, as far as processes and clocks show.
    lease: the newest lease of the key (the right to make its result), with the run that holds it; progress: what the
    run passed to `Lease.tell` before its last heartbeat, {} if nothing. Costs one listing, and up to four requests for
    each key.

    silent: whether to yield also leases without a heartbeat for their ttl (time to live), whose holders may be dead."""
    for key in backend.folders("leases"):
        holder = newest_holder(backend, key)
        if holder is not None and not holder.is_over and (silent or not holder.seems_silent):
            beat = _read(backend, _beat_name(key, holder)) or {}
            yield key, holder, dict(beat.get("progress") or {})


def sweep_leases(backend: Backend) -> int:
    """Remove the leases (rights to make a key's result, which one run has at a time) that have certainly ended
    (`Holder.is_over`) from a store, such as those of killed processes. Return the number of keys whose leases were
    removed. Costs one listing when the store has no leases.

    Each lease is taken over before it is removed, so that a lease in use is never removed.
    """
    swept = 0
    for key in backend.folders("leases"):
        newest = newest_holder(backend, key)
        if newest is None or newest.is_over:
            lease = Waiter(backend, key, run="sweep", attempt="sweep", ttl=SWEEP_SECONDS).take()
            if lease is not None:
                lease.release()
                backend.remove_empty(_folder(key), unfinished=True)
                swept += 1
    return swept


def _holder(backend: Backend, key: str, fence: int) -> Holder | None:
    """Return the lease with a fencing number, without its heartbeat; None when there is none."""
    found = _read(backend, _name(key, fence))
    if found is None:
        return None
    try:
        process = Process(**found["process"])
        token, run, attempt, since = (str(found[name]) for name in ("token", "run", "attempt", "since"))
        return Holder(fence, token, process, run, attempt, since, float(found["ttl"]))
    except (KeyError, TypeError, ValueError):
        return Holder(fence, "", NOBODY, "?", "?", "?", FALLBACK_TTL)  # damaged: it expires like any other


def _without_beat(holder: Holder) -> Holder:
    return replace(holder, beat=0, at="")


def _to_json(holder: Holder) -> bytes:
    document = asdict(_without_beat(holder)) | {"process": holder.process._asdict()}
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _read(backend: Backend, name: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; {} when the file has no JSON object, None when there is no file."""
    try:
        found = json.loads(backend.read(name))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _folder(key: str) -> str:
    return f"leases/{key}"


def _name(key: str, fence: int) -> str:
    return f"{_folder(key)}/{fence}.json"


def _beat_name(key: str, holder: Holder) -> str:
    return f"{_folder(key)}/{holder.fence}.{holder.token}"


def _fences(names: list[str]) -> list[int]:
    numbers = [document_name(name) for name in names if name.endswith(".json")]
    return [int(number) for number in numbers if number.isdigit() and str(int(number)) == number]
