"""The lease that lets one process at a time retrain a recipe: a file in the store that names the process which holds
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import new_run_id
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Holder, Lease, Waiter, newest_holder


@contextmanager
def hold_lease(
    recipe: Recipe, store: Store, *, wait: bool, tell: Callable[[Holder], None] = lambda holder: None
) -> Iterator[Lease | str]:
    """Context that holds the lease of a recipe's retraining: a file in the store, by which one process at a time may
    retrain the recipe, and which its holder renews by heartbeats. Yields the lease, or, if another process holds the
    lease, a text that describes that process.

    wait: whether to wait while another living process holds the lease; tell: called once with each holder that is
    waited for. If a holder sends no heartbeats, this context waits even without `wait`: until the lease's time to live
    is over or heartbeats come."""
    run = new_run_id()
    waiter: Waiter = store.waiter(_key(recipe), run=run, attempt=run, ttl=recipe.store.lease_ttl_seconds)
    lease = waiter.take_watching(wait=wait, tell=tell)
    if lease is None:
        yield str(waiter.holder or "another process")
        return
    with lease:
        yield lease


def holder_of(recipe: Recipe, store: Store) -> Holder | None:
    """Return the process that retrains a recipe now, without taking the lease (the file in the store by which one
    process at a time may retrain the recipe, and which names this process); None if there is none. A process that is
    known to be dead, or whose last heartbeat is older than the lease's time to live by the wall clock, does not
    count."""
    newest = newest_holder(store.backend, _key(recipe))
    return None if newest is None or newest.is_over or newest.seems_silent else newest


def _key(recipe: Recipe) -> str:
    return digest_of({"retrain": recipe.name}).removeprefix("sha256:")
