"""Which model serves a recipe's users, beside another one that a command uses."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import read_ledger


class Serving(NamedTuple):
    """A model that a command uses, and the champion.

    model: the digest of the used one; number, champion: of the champion, which serves; name: what names the champion in
    commands, such as `tickets.yaml@champion`.
    """

    model: str
    number: int
    champion: str
    name: str

    @property
    def is_other(self) -> bool:
        return self.model != self.champion

    def __str__(self) -> str:
        champion = f"champion {self.number} ({self.champion[:19]})"
        return f"{self.model[:19]}, not the champion: {champion} serves, named {self.name}"


def serving_beside(store: Store, recipe: str, model: str | None, name: str) -> Serving | None:
    """Return a recipe's champion beside a model; None without a champion or a model.

    recipe: its name; model: a digest; name: the recipe as the user named it.
    """
    titles = read_ledger(store, recipe).stands["champions"] if model else []
    if not titles:
        return None
    return Serving(str(model), titles[0]["number"], titles[0]["artifact"], champion_name(name))


def champion_name(recipe: str) -> str:
    """Return what names a recipe's champion in commands."""
    return shlex.quote(f"{recipe}@champion")
