"""Claim what a stage needs alone: its devices, and the right to make the result of its key.

Runs may be on one machine or on several. A run that waits for another's result holds no device, and one that waits for a
device holds no key, so no two runs wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from trnflow.flows.runner.devices import device_key
from trnflow.flows.runner.stored import Stored
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Holder, Lease, Waiter, newest_holder
from trnflow.tasks.system.process import this_process

WAITS = "waits for"
"""The beginning of a message to the user about another run that this run waits for."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between two attempts to take a lease: at first, and at most. The pause grows by half each time."""


@contextmanager
def claim(
    waiter: Callable[[], Waiter],
    take_devices: Callable[[ExitStack], Stored | None],
    made: Callable[[], Stored | None],
    say: Callable[[str], None],
    on_wait: Callable[[], None],
) -> Iterator[Lease | Stored]:
    """Yield the lease of a key, held in this context as its devices are; or the result that another run publishes
    meanwhile. Ctrl-C ends the waiting at once.

    Args:
        waiter: Returns an object that tries to take the lease.
        take_devices: Puts the leases of devices into the stack; may wait. Returns what `made` returned meanwhile.
        made: Looks up what another run has published.
        say: Gets text for the user: once for each run that is waited for.
        on_wait: Called again and again while this run waits; an error that it raises ends the waiting.
    """
    while True:
        with ExitStack() as held:
            stored = take_devices(held)
            if stored is not None:
                yield stored
                return
            lease = waiter().acquire()
            if lease is not None:
                held.enter_context(lease)
                # another may have published between this run's last look and its turn
                yield made() or lease
                return
        turn = await_turn(waiter(), made, lambda holder: say(f"{WAITS} {holder}"), on_wait)
        if isinstance(turn, Stored):
            yield turn
            return
        turn.release()  # to take the devices first


def await_turn(
    waiter: Waiter,
    made: Callable[[], Stored | None],
    tell: Callable[[Holder], None],
    on_wait: Callable[[], None],
) -> Lease | Stored:
    """Wait until a lease is free, and take it. Return what another run publishes meanwhile instead. A lease that another
    thread of this process holds is waited for, too.

    Args:
        waiter: Tries to take the lease.
        made: Returns the result that another run has published, or None.
        tell: Called once with each holder of the lease that is waited for.
        on_wait: Called before each pause; an error that it raises ends the waiting.
    """
    pause = FIRST_WAIT
    known = None
    while True:
        lease = waiter.acquire()
        if lease is not None:
            return lease
        stored = made()
        if stored is not None:
            return stored
        if waiter.holder is not None and waiter.holder.token != known:
            known = waiter.holder.token
            tell(waiter.holder)
        on_wait()
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_WAIT)


def take_devices(
    held: ExitStack,
    store: Store,
    names: Iterable[str],
    *,
    run: str,
    attempt: str,
    ttl: float,
    made: Callable[[], Stored | None],
    say: Callable[[str], None],
    on_wait: Callable[[], None],
) -> Stored | None:
    """Take the leases of devices, one after the other. Return what `made` returns while this run waits, if anything.

    Devices whose lease this process holds already, as a sweep does for its trials, are skipped.

    Args:
        held: Gets the leases; releases them when its context ends.
        names: Sorted. Every process takes the leases in this order, so that no two wait for each other.
        run: By which the leases name their holder: the run's id, and its recipe.
        attempt: A lease lasts as long as a process of this attempt lives, which may still save its state after the run
            was killed.
        ttl: Seconds without a heartbeat after which another process may take over a lease.
    """
    for name in names:
        if (holder := newest_holder(store.backend, device_key(name))) and holder.process == this_process():
            continue
        waiter = store.waiter(device_key(name), run=run, attempt=attempt, ttl=ttl, patient=True)
        turn = await_turn(waiter, made, partial(_tell, say, name), on_wait)
        if isinstance(turn, Stored):
            return turn
        held.enter_context(turn)
    return None


def describe_maker(store: Store, stage: str, key: str) -> str:
    """Return the process that made the result of a key, as `HOST pid N`."""
    record = store.record(stage, key) or {}
    attempt = store.attempt(key, str(record.get("attempt", "")))
    return f"{attempt.get('host', 'an unknown host')} pid {attempt.get('pid', '?')}"


def _tell(say: Callable[[str], None], name: str, holder: Holder) -> None:
    say(f"{WAITS} the devices ({name}): {holder} uses them")
