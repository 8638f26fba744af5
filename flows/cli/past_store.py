"""Open the store that a command about past runs looks into."""

from __future__ import annotations

import shlex
from contextlib import suppress

from trnflow.flows.recipes.names import root_of
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.events import run_folder
from trnflow.tasks.events.reading import read_log
from trnflow.tasks.events.retention import FILE, written_runs
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.location import default_root
from trnflow.tasks.system.home import home_folder


def past_store(root: str | None, name: str | None = None) -> Store:
    """Return the store at a root, else that of the recipe which a name names, else the default one. Raises ConfigError,
    which says where the newest run of this home is if there is no default store."""
    root = root_of(name, root)
    if root is None and not Store(default_root(home_folder()), home_folder()).is_made() and (other := _newest_root()):
        raise ConfigError(
            f"there is no store at {default_root(home_folder())}; the newest run here is in {other}",
            f"add --store {shlex.quote(other)}, or set TRNFLOW_STORE",
        )
    return made_store(root)


def _newest_root() -> str | None:
    """Return the root of the store of this home's newest run, if its log can be read."""
    with suppress(TrnflowError, OSError, ValueError):
        return read_log(run_folder(home_folder(), max(written_runs(home_folder()))) / FILE).store or None
    return None
