"""Claim what a stage needs alone: its devices, and the right to make the result of its key.

Runs may be on one machine or on several. A run that waits for another's result holds no device, and one that waits for a
device holds no key, so no two runs wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from trnflow.flows.runner.devices import device_key
from trnflow.flows.runner.stored import Stored
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Lease, Waiter, newest_holder
from trnflow.tasks.system.process import this_process

WAITS = "waits for"
"""The beginning of a message to the user about another run that this run waits for."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""Seconds between two attempts to take a lease: at first, and at most. The pause grows by half each time."""


@dataclass
class Turn:
    """What a run needs to wait for leases that others hold; Ctrl-C ends the waiting at once.

    Attributes:
        run: By which the leases name their holder: the run's id, and its recipe.
        attempt: A lease of devices lasts as long as a process of this attempt lives, which may still save its state after
            the run was killed.
        ttl: Seconds without a heartbeat after which another process may take over a lease.
        look: Returns the result that another run has published, or None.
        say: Gets text for the user: once for each run that is waited for.
        on_wait: Called before each pause; an error that it raises ends the waiting.
    """

    store: Store
    run: str
    recipe: str
    attempt: str
    ttl: float
    look: Callable[[], Stored | None]
    say: Callable[[str], None]
    on_wait: Callable[[], None]

    @contextmanager
    def claim(self, key: str, devices: Iterable[str]) -> Iterator[Lease | Stored]:
        """Yield the lease of a key, held in this context as its devices are; or the result that another run publishes
        meanwhile.

        devices: Sorted. Every process takes their leases in this order, so that no two wait for each other. Devices whose
        lease this process holds already, as a sweep does for its trials, are skipped.
        """
        while True:
            with ExitStack() as held:
                for name in devices:
                    holder = newest_holder(self.store.backend, device_key(name))
                    if holder is None or holder.process != this_process():
                        waiter = self._waiter(device_key(name), f"{self.run} of {self.recipe}", patient=True)
                        device = self._await(f"the devices ({name}): {{}} uses them", waiter)
                        if isinstance(device, Stored):
                            yield device
                            return
                        held.enter_context(device)
                lease = self._waiter(key, self.run).acquire()
                if lease is not None:
                    held.enter_context(lease)
                    # another may have published between this run's last look and its turn
                    yield self.look() or lease
                    return
            turn = self._await("{}", self._waiter(key, self.run))
            if isinstance(turn, Stored):
                yield turn
                return
            turn.release()  # to take the devices first

    def _waiter(self, key: str, run: str, *, patient: bool = False) -> Waiter:
        return self.store.waiter(key, run=run, attempt=self.attempt, ttl=self.ttl, patient=patient)

    def _await(self, text: str, waiter: Waiter) -> Lease | Stored:
        """Take a lease once it is free, or what another run publishes meanwhile. text: with `{}` for the holder."""
        pause = FIRST_WAIT
        known = None
        while True:
            lease = waiter.acquire()
            if lease is not None:
                return lease
            stored = self.look()
            if stored is not None:
                return stored
            if waiter.holder is not None and waiter.holder.token != known:
                known = waiter.holder.token
                self.say(f"{WAITS} {text.format(waiter.holder)}")
            self.on_wait()
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_WAIT)


def describe_maker(store: Store, stage: str, key: str) -> str:
    """Return the process that made the result of a key, as `HOST pid N`."""
    record = store.record(stage, key)
    attempt = store.attempt(key, record["attempt"] if record else "")
    return f"{attempt.get('host', 'an unknown host')} pid {attempt.get('pid', '?')}"
