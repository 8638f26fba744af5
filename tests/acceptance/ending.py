"""How each scenario ends: nothing in the store is wrong, and what was asked for is all there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trnflow.tasks.store import Store
from trnflow.tasks.store.verify import verify


def check_ending(store: Store, again: Callable[[], Mapping[str, str]]) -> None:
    """again: runs once more and returns {stage: action}. All that is needed hits, and `verify` is clean, the cache too."""
    actions = again()
    assert "hit" in actions.values() and set(actions.values()) <= {"hit", "skip"}, actions
    found = verify(store.backend, cache=None if store.is_local else store.cache)
    assert (found.problems, found.ok) == ([], True)
