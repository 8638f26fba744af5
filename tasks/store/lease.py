"""Who makes a key now: leases with fencing numbers, over any backend, without locks, compare-and-swap or a common clock.

<root>/leases/<key>/<fence>.json     create-only: owner, since, ttl
<root>/leases/<key>/<fence>.<token>  its heartbeat, rewritten every ttl/3

The newest fence holds. It is over when it is released, when its process is certainly dead (seen on its own machine only), or when
a waiter saw it unchanged for its ttl by the waiter's own monotonic clock; then whoever creates fence + 1 holds. A holder that
was paused meanwhile finds a newer fence, or its own gone, when it checks. Released leases are removed, folder and all.

Correctness never rests on a lease: two holders at once cost work, and the create-only record decides between them. No lock ever
needs a human. Taking and releasing costs four small requests, a look while waiting three.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from tasks.errors import StoreError
from tasks.store.backend import Backend
from tasks.store.process import Process, lives_on, this_process

FORGOTTEN_SECONDS = 86400.0
"""A lease whose last sign of life is so old, by wall clocks, is over without being watched for its ttl."""

FALLBACK_TTL = 60.0
SWEEP_SECONDS = 10.0
LAST_BEAT_SECONDS = 10.0
NOBODY = Process("?", "?", "?", 0, 0)


class LeaseLost(Exception):
    """Another process took over while this one was paused or cut off: what it makes counts."""


@dataclass(frozen=True)
class Holder:
    """A lease as it stands in the store. token: of this taking; at: its last sign of life, UTC by its holder's clock;
    beat: changes as long as the holder lives; ttl in seconds."""

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
        """True only when its process and those of its stage certainly ended, or it was silent for a day."""
        return (self.process.is_dead() and not lives_on(self.attempt)) or self._is_forgotten()

    def _is_forgotten(self) -> bool:
        try:
            silent = datetime.now(UTC) - datetime.fromisoformat(self.at or self.since)
        except (ValueError, TypeError):
            return False
        return silent.total_seconds() > max(FORGOTTEN_SECONDS, 10 * self.ttl)

    def __str__(self) -> str:
        return f"{self.process.host} pid {self.process.pid} (run {self.run}, since {self.since})"


class Waiter:
    """One process's turn at a key: `take` until it gives a lease. holder: who held it at the last look, or None."""

    def __init__(self, backend: Backend, key: str, *, run: str, attempt: str, ttl: float) -> None:
        self.holder: Holder | None = None
        self._backend = backend
        self._key = key
        self._run = run
        self._attempt = attempt
        self._ttl = ttl
        self._unchanged_since = 0.0

    def take(self) -> Lease | None:
        """The lease, or None while another holds it or was faster."""
        newest = newest_holder(self._backend, self._key)
        if newest is not None and not self._is_over(newest):
            return None
        fence = newest.fence + 1 if newest else 1
        mine = Holder(fence, uuid.uuid4().hex[:12], this_process(), self._run, self._attempt, now(), self._ttl)
        if not self._backend.create(_name(self._key, fence), _to_json(mine)):
            winner = _holder(self._backend, self._key, fence)
            if winner is None or winner.token != mine.token:  # else it was this one, whose answer was lost on the way
                return None
        lease = Lease(self._backend, self._key, mine)
        if newest is not None and _holder(self._backend, self._key, newest.fence) != _without_beat(newest):
            lease.release()  # it was taken over and released in between, so numbers start anew: so does this
            return None
        return lease

    def _is_over(self, newest: Holder) -> bool:
        if newest != self.holder:
            self.holder, self._unchanged_since = newest, time.monotonic()
        silent = time.monotonic() - self._unchanged_since
        return silent >= newest.ttl or newest.is_over


class Lease:
    """A lease that this process took. As a context: beats while inside, and is released when left."""

    def __init__(self, backend: Backend, key: str, mine: Holder) -> None:
        self._backend = backend
        self._key = key
        self._mine = mine
        self._lost = ""
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {key[:12]}", daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(StoreError, FileNotFoundError):  # what stays behind runs out by itself
            self.release()

    @property
    def attempt(self) -> str:
        return self._mine.attempt

    def heed(self) -> None:
        """Raise LeaseLost if the heartbeat noticed that another took over. Costs nothing."""
        if self._lost:
            raise LeaseLost(self._lost)

    def check(self) -> None:
        """Ask the store whether this lease is the newest; LeaseLost when it is not. Two or three requests."""
        newest = newest_holder(self._backend, self._key)
        if newest is None or newest.token != self._mine.token:
            who = newest or "another run"
            self._lost = f"{who} took over while this run was paused or cut off from the store"
        self.heed()

    def release(self) -> None:
        """Remove this lease and older ones, its own last: an older holder that wakes meanwhile still sees a newer one."""
        self._left.set()
        if self._thread.is_alive():
            self._thread.join(LAST_BEAT_SECONDS)
        newest = newest_holder(self._backend, self._key)
        own = _name(self._key, self._mine.fence)
        if newest is None or newest.token != self._mine.token:
            self._backend.remove(_beat_name(self._key, self._mine))
        else:
            for name in self._backend.names(_folder(self._key)):
                if name != own:
                    self._backend.remove(name)
            self._backend.remove(own)
        self._backend.tidy(_folder(self._key))

    def _beat(self) -> None:
        count = 0
        while not self._left.wait(self._mine.ttl / 3):
            count += 1
            try:
                self.check()
                beat = json.dumps({"beat": count, "at": now()}).encode()
                self._backend.replace(_beat_name(self._key, self._mine), beat, durable=False)
            except LeaseLost:
                return
            except Exception:  # whatever went wrong, the next beat may pass; `check` decides what counts
                continue


def newest_holder(backend: Backend, key: str) -> Holder | None:
    """Who holds a key, or held it last without releasing it; with its heartbeat."""
    names = backend.names(_folder(key))
    for fence in sorted(_fences(names), reverse=True):
        holder = _holder(backend, key, fence)
        if holder is not None:  # else released since it was listed
            beat = _beat_name(key, holder)
            said = _read(backend, beat) if beat in names else None
            return replace(holder, beat=said.get("beat", 0), at=str(said.get("at", ""))) if said else holder
    return None


def sweep_leases(backend: Backend) -> int:
    """Remove what dead holders left of keys that nobody waits for; returns how many. One listing when there are none.

    Each is taken over before it is removed, so that no living holder's is.
    """
    swept = 0
    for key in backend.folders("leases"):
        newest = newest_holder(backend, key)
        if newest is None or newest.is_over:
            lease = Waiter(backend, key, run="sweep", attempt="sweep", ttl=SWEEP_SECONDS).take()
            if lease is not None:
                lease.release()
                backend.tidy(_folder(key), asides=True)
                swept += 1
    return swept


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _holder(backend: Backend, key: str, fence: int) -> Holder | None:
    """What a lease says, without its heartbeat; None when there is none."""
    said = _read(backend, _name(key, fence))
    if said is None:
        return None
    try:
        process = Process(**said["process"])
        token, run, attempt, since = (str(said[name]) for name in ("token", "run", "attempt", "since"))
        return Holder(fence, token, process, run, attempt, since, float(said["ttl"]))
    except (KeyError, TypeError, ValueError):
        return Holder(fence, "", NOBODY, "?", "?", "?", FALLBACK_TTL)  # unreadable: waited for all the same


def _without_beat(holder: Holder) -> Holder:
    return replace(holder, beat=0, at="")


def _to_json(holder: Holder) -> bytes:
    said = asdict(_without_beat(holder)) | {"process": holder.process._asdict()}
    return json.dumps(said, indent=1, sort_keys=True).encode()


def _read(backend: Backend, name: str) -> dict[str, Any] | None:
    """The object under a name; empty when it is no JSON object, None when there is nothing."""
    try:
        said = json.loads(backend.read(name))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _folder(key: str) -> str:
    return f"leases/{key}"


def _name(key: str, fence: int) -> str:
    return f"{_folder(key)}/{fence}.json"


def _beat_name(key: str, holder: Holder) -> str:
    return f"{_folder(key)}/{holder.fence}.{holder.token}"


def _fences(names: list[str]) -> list[int]:
    numbers = [name.rsplit("/", 1)[1].removesuffix(".json") for name in names if name.endswith(".json")]
    return [int(number) for number in numbers if number.isdigit() and str(int(number)) == number]
