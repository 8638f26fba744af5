"""Single flight: of all runs that want one key at once, on whatever machines, one makes it and the others adopt it."""

from __future__ import annotations

import time
from collections.abc import Callable

from flows.call import Outcome
from tasks.store import Store
from tasks.store.lease import Lease, LeaseLost, Waiter

FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between two looks; they grow by half each time."""


def single_flight(
    waiter: Callable[[], Waiter],
    *,
    made: Callable[[bool], Outcome | None],
    make: Callable[[Lease], Outcome],
    say: Callable[[str], None],
) -> Outcome:
    """What `made` finds on record as soon as it is there, else what `make` returns, called under the key's lease.

    made: is told whether another run took over from this one; make: may raise LeaseLost, and what took over is waited for;
    say: hears once of each holder that is waited for. At once when nobody holds the key. Ctrl-C ends the waiting at once; a
    failure of the store is a StoreError.
    """
    superseded = False
    while True:
        turn = _await_turn(waiter(), made, superseded, say)
        if isinstance(turn, Outcome):
            return turn
        with turn as lease:
            try:
                # another may have published between this run's last look and its turn
                return made(superseded) or make(lease)
            except LeaseLost as error:
                superseded = True
                say(f"{error}; adopting what that one makes")


def _await_turn(
    waiter: Waiter, made: Callable[[bool], Outcome | None], superseded: bool, say: Callable[[str], None]
) -> Lease | Outcome:
    pause = FIRST_WAIT
    told = None
    while True:
        lease = waiter.take()
        if lease is not None:
            return lease
        outcome = made(superseded)
        if outcome is not None:
            return outcome
        if waiter.holder is not None and waiter.holder.token != told:
            told = waiter.holder.token
            say(f"waits for {waiter.holder}")
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_WAIT)


def maker(store: Store, stage: str, key: str) -> str:
    """Who made what is on record: `HOST pid N`."""
    record = store.record(stage, key) or {}
    attempt = store.attempt(key, str(record.get("attempt", "")))
    return f"{attempt.get('host', 'an unknown host')} pid {attempt.get('pid', '?')}"
