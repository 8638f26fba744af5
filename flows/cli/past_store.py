"""Open the store that a command about past runs looks into, and find the run that it is about."""

from __future__ import annotations

from collections.abc import Iterable

from trnflow.flows.cli.output import say
from trnflow.flows.recipes.names import is_recipe, model_name, root_of
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events.begun_runs import begun_runs
from trnflow.tasks.events.retention import PREVIEW
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.location import default_root
from trnflow.tasks.store.model_names import find_run
from trnflow.tasks.system.home import home_folder


def past_store(root: str | None, name: str | None = None) -> Store:
    """Return the store at a root, else that which `root_of` finds for a name. Says on stderr which one it is, where it is
    neither given nor the default one. Raises ConfigError if there is none."""
    found = root_of(name, root)
    if found and not root and found != default_root(home_folder()):
        say(f"store: {found}")
    return made_store(found)


def past_run(store: Store, text: str, more_runs: Iterable[str] = ()) -> str:
    """Return the id of the run that a name means, of a recipe its newest. Raises ConfigError.

    more_runs: ids of runs that are not on record; with any, those of this machine count for a recipe, too.
    """
    name, more = model_name(text), {*more_runs}
    begun = [
        each for each in begun_runs(store.home)
        if each.recipe == name.recipe and (each.store == store.root or store.run(each.run))
    ]  # fmt: skip
    if not is_recipe(text) and not (begun and name.text == name.recipe):
        return find_run(store, name, more)
    here = {each.run for each in begun if not each.run.endswith(PREVIEW)} & more
    for run in sorted({*store.run_ids(), *here}, reverse=True):
        if run in here or (store.run(run) or {}).get("recipe") == name.recipe:
            return run
    raise ConfigError(f"this store has no run of {text}", f"`trnflow run {text}` makes one")
