"""Find out whether a stage can resume from the partial state of an interrupted attempt, and if not, why."""

from __future__ import annotations

from tasks.artifact import Meta
from tasks.keys.explain import nearest_record
from tasks.store import Store


def outlook(store: Store, stage: str, key: str, document: Meta) -> str:
    """Say where a resumable stage would start, as text for the user.

    If the stage's key has partial state, the text is "goes on from step N". If only another key of the stage has
    partial state, the text says that the stage starts from zero and which values differ between the two keys. Otherwise
    the text is empty. Costs one listing of the store.
    """
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
    """List the keys of a stage that have partial state, each as {"document": its key document}.

    The key document is taken from the newest attempt that wrote one to its journal.
    """
    found = []
    for key in store.backend.folders("partial"):
        names = [name.rsplit("/", 1)[1].removesuffix(".json") for name in store.backend.names(f"attempts/{key}")]
        attempts = [store.attempt(key, name) for name in sorted(names, reverse=True)]
        told = (attempt for attempt in attempts if attempt.get("stage") == stage and "document" in attempt)
        found += [{"document": attempt["document"]} for attempt in list(told)[:1]]
    return found
