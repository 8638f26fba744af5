"""Let only one run at a time make the result of a stage's key. Other runs that need the same result wait until it is
made, and use it.

A key is the hash of everything that decides the result of a stage. The run that has the *lease* of the key, a file in
the store, makes the result. The runs may be on one machine or on several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from trnflow.flows.runner.call import Outcome
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Holder, Lease, LeaseLost, Waiter

WAITS = "waits for"
"""The beginning of a message to the user about another run that this run waits for."""
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
    """Make the result of a key (the hash of everything that decides a stage's result) under the key's lease, a file in
    the store that one run at a time has. If another run has the lease, wait and use the result of that run.

    The resources that `take` takes are held while this run makes the result. They are not held while this run waits for
    the lease, and the lease is not held while `take` waits: no two runs wait for each other. Ctrl-C ends the waiting at
    once.

    Args:
        waiter: Returns an object that tries to take the lease.
        made: Looks up the result that another run has published, and returns its outcome; None if there is none. Its
            argument: whether another run took over this run's lease.
        make: Runs the stage under the lease and returns the outcome. If it raises LeaseLost, because another run took
            over the lease, this function waits for that run.
        say: Gets text for the user: once for each run that is waited for.
        heed: Called again and again while this run waits; an error that it raises ends the waiting.
        take: Takes further resources that `make` needs, such as devices, and puts them into the stack, which releases
            them. `take` may wait. It returns the outcome if another run publishes the result meanwhile, else None.

    Returns:
        The outcome that `make`, `made` or `take` returned.

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
    """Wait until a lease is free, take it for this run and return it. If another run publishes the result meanwhile,
    return the outcome of that result instead.

    A lease is a file in the store by which one run at a time makes a result or uses a device. If another thread of this
    process holds the lease, this function waits in the same way.

    Args:
        waiter: Tries to take the lease.
        made: Returns the outcome of a result that another run has published, or None.
        tell: Called once with each holder of the lease that is waited for.
        heed: Called before each pause; an error that it raises ends the waiting.
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
    """Return the process that made the artifact which the store has for a stage's key, as text `HOST pid N`; `an
    unknown host pid ?` if the store doesn't know it."""
    record = store.record(stage, key) or {}
    attempt = store.attempt(key, str(record.get("attempt", "")))
    return f"{attempt.get('host', 'an unknown host')} pid {attempt.get('pid', '?')}"
