"""A champion that a person made by `trnflow promote --force`, without evidence."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from typing import NamedTuple

from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, read_ledger, recipes_of
from trnflow.tasks.store.ledger.entries import Forced
from trnflow.tasks.system.redaction import scrub

FLOW_RUN = "PREFECT__FLOW_RUN_ID"
"""The variable of a process that Prefect started for a flow run."""


class Force(NamedTuple):
    """Who forces a promotion, and why."""

    who: str
    why: str


def force_by_hand(why: str | None) -> Force:
    """Return the force of this process's user. Raises ConfigError without a reason, and in a flow run of Prefect."""
    if os.environ.get(FLOW_RUN):
        raise ConfigError("a flow run of Prefect can't force a promotion", "`trnflow promote --force` is for a person")
    reason = " ".join((why or "").split())
    if not reason:
        raise ConfigError("--force needs a reason, which is recorded", 'add --why "TEXT"')
    return Force(f"{_user()}@{socket.gethostname()}", scrub(reason))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def forced_champion(ledger: Ledger) -> str:
    """Return a sentence if the present champion was forced and none was promoted by evidence since, else ""."""
    champion = ledger.champion
    if champion is None or champion["forced"] is None:
        return ""
    forced = champion["forced"]
    whose, when = f"champion {champion['number']} of {ledger.recipe}", champion["created"][:10]
    return f"{whose} was forced by {forced['who']} on {when}: {told(forced)}"


def told(forced: Forced) -> str:
    """Return why a champion was forced, and which bounds and checks it broke."""
    return f"{forced['why']} (broken: {'; '.join(forced['broke'])})"


def forced_in(store: Store, model: str) -> str:
    """Return a sentence without the person's name if a model is a recipe's present champion by force, else ""."""
    for recipe in recipes_of(store):
        champion = None
        with suppress(StoreError):  # another recipe's ledger may be damaged
            champion = read_ledger(store, recipe).champion
        if champion is not None and champion["champion"] == model and champion["forced"] is not None:
            when, why = champion["created"][:10], told(champion["forced"])
            return f"This model was made champion {champion['number']} of {recipe} by force on {when}: {why}."
    return ""
