"""Training that was begun and not ended: what a run goes on from, or why it does not."""

from __future__ import annotations

from tasks.artifact import Meta
from tasks.explain import nearest_record
from tasks.store import Store


def outlook(store: Store, stage: str, key: str, document: Meta) -> str:
    """Where a stage that keeps partial state would begin, if any is there: at its own, or anew beside that of another key, and
    what differs. Costs one listing when there is none."""
    steps = store.partial(key).steps()
    if steps:
        return f"goes on from step {steps[-1]}"
    near = nearest_record(unfinished(store, stage), document)
    if near is None:
        return ""
    changes = near[1]
    more = f" and {len(changes) - 2} more" if len(changes) > 2 else ""
    return f"starts from zero: the unfinished one differs in {'; '.join(map(str, changes[:2]))}{more}"


def unfinished(store: Store, stage: str) -> list[Meta]:
    """{"document": ...} of each key of a stage that has partial state, by its last attempt that says what it was."""
    found = []
    for key in store.backend.folders("partial"):
        names = [name.rsplit("/", 1)[1].removesuffix(".json") for name in store.backend.names(f"attempts/{key}")]
        attempts = [store.attempt(key, name) for name in sorted(names, reverse=True)]
        told = (attempt for attempt in attempts if attempt.get("stage") == stage and "document" in attempt)
        found += [{"document": attempt["document"]} for attempt in list(told)[:1]]
    return found
