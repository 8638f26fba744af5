"""Whether the store still has the bytes of a champion."""

from __future__ import annotations

from trnflow.tasks.errors import BlobLost
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger


def lost_champion(store: Store, ledger: Ledger) -> str | None:
    """Return a sentence if the store has lost the champion, or one of its files; of a remote store the manifest counts."""
    if ledger.champion is None:
        return None
    digest, number = str(ledger.champion["champion"]), ledger.champion["number"]
    try:
        missing = store.missing(store.artifact(digest))
        what = missing and f"the store has lost {missing.path}"
    except BlobLost as error:
        what = error.message
    where = f"champion {number} of {ledger.recipe} ({digest[:19]}) can't serve"
    return f"{where}: {what}; {restoring(ledger.recipe)}" if what else None


def restoring(recipe: str) -> str:
    """Return the commands that help against a lost champion."""
    return f"`trnflow run {recipe}` makes it again where settings are the same; `trnflow rollback {recipe}` takes the one before"
