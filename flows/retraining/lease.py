"""The lease that lets one process at a time retrain a recipe."""

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
    """Hold the lease of a recipe's retrain within the context; yield it, or a text about another holder.

    wait: wait for a living holder, too; tell: called once with each holder that is waited for.
    """
    run = new_run_id()
    waiter: Waiter = store.waiter(_key(recipe), run=run, attempt=run, ttl=recipe.store.lease_ttl_seconds)
    lease = waiter.acquire_watching(wait=wait, tell=tell)
    if lease is None:
        yield str(waiter.holder or "another process")
        return
    with lease:
        yield lease


def holder_of(recipe: Recipe, store: Store) -> Holder | None:
    """Return the process that retrains a recipe now, or None; a silent one does not count."""
    newest = newest_holder(store.backend, _key(recipe))
    return None if newest is None or newest.is_over or newest.seems_silent else newest


def _key(recipe: Recipe) -> str:
    return digest_of({"retrain": recipe.name}).removeprefix("sha256:")
