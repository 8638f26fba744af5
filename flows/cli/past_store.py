"""Open the store that a command about past runs looks into."""

from __future__ import annotations

from trnflow.flows.cli.output import say
from trnflow.flows.recipes.names import root_of
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.location import default_root
from trnflow.tasks.system.home import home_folder


def past_store(root: str | None, name: str | None = None) -> Store:
    """Return the store at a root, else that which `root_of` finds for a name. Says on stderr which one it is, where it is
    neither given nor the default one. Raises ConfigError if there is none."""
    found = root_of(name, root)
    if found and not root and found != default_root(home_folder()):
        say(f"store: {found}")
    return made_store(found)
