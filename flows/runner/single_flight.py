"""Make sure that one run makes a key while others that need it wait and use the result, on one machine or several."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from flows.runner.call import Outcome
from tasks.store import Store
from tasks.store.lease import Holder, Lease, LeaseLost, Waiter

WAITS = "waits for"
"""What the user is told of another run that is waited for begins with this."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between two attempts to take the lease: at first, and at most. The pause grows by half each time."""


def single_flight(
    waiter: Callable[[], Waiter],
    *,
    made: Callable[[bool], Outcome | None],
    make: Callable[[Lease], Outcome],
    say: Callable[[str], None],
    heed: Callable[[], None],
    take: Callable[[ExitStack], Outcome | None] = lambda held: None,
) -> Outcome:
    """Return the outcome for a key: wait while another run makes it, else make it under the key's lease.

    Does not wait if no run has the lease. Ctrl-C ends the waiting at once. What `take` takes is held while this run makes the
    key, and not while it waits for the key's lease; nor is that lease held while `take` waits. So no run that waits keeps
    anything from others, and no two of them wait for each other.

    Args:
        waiter: Returns an object that tries to take the lease.
        made: Looks up what another run has published; None if there is nothing. Its argument: whether another run has taken
            the lease from this one.
        make: Runs the stage under the lease. If it raises LeaseLost, this function waits for the run that took the lease.
        say: Gets text for the user: once for each run that is waited for.
        heed: Called again and again while this run waits; raises to end the waiting.
        take: Takes what else is needed to make the key, such as devices, and puts it into the stack. It may wait; it returns
            what another run has published meanwhile.

    Raises:
        StoreError: The store failed.
    """
    superseded = False
    while True:
        with ExitStack() as held:
            outcome = take(held)
            if outcome is not None:
                return outcome
            lease = waiter().take()
            if lease is not None:
                held.enter_context(lease)
                try:
                    # another may have published between this run's last look and its turn
                    return made(superseded) or make(lease)
                except LeaseLost as error:
                    superseded = True
                    say(f"{error}; adopting what that one makes")
        turn = await_turn(waiter(), partial(made, superseded), lambda holder: say(f"{WAITS} {holder}"), heed)
        if isinstance(turn, Outcome):
            return turn
        turn.release()  # to take the rest first


def await_turn(
    waiter: Waiter,
    made: Callable[[], Outcome | None],
    tell: Callable[[Holder], None],
    heed: Callable[[], None],
) -> Lease | Outcome:
    """Wait until a lease is free and return it, or return what another run has published meanwhile. A lease that another
    thread of this process holds is waited for, too.

    Args:
        tell: Called once with each lease that is waited for.
        heed: Called before each pause; raises to end the waiting.
    """
    pause = FIRST_WAIT
    told = None
    while True:
        lease = waiter.take()
        if lease is not None:
            return lease
        outcome = made()
        if outcome is not None:
            return outcome
        if waiter.holder is not None and waiter.holder.token != told:
            told = waiter.holder.token
            tell(waiter.holder)
        heed()
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_WAIT)


def maker(store: Store, stage: str, key: str) -> str:
    """Return which process made the recorded artifact of a key, as text `HOST pid N`."""
    record = store.record(stage, key) or {}
    attempt = store.attempt(key, str(record.get("attempt", "")))
    return f"{attempt.get('host', 'an unknown host')} pid {attempt.get('pid', '?')}"
