"""Names by which a recipe is given on the command line and in settings."""

from __future__ import annotations

import os
from pathlib import Path

from trnflow.tasks.events.begun_runs import begun_runs
from trnflow.tasks.store import Store
from trnflow.tasks.store.location import VARIABLE, default_root
from trnflow.tasks.store.model_names import ModelName, parse_model
from trnflow.tasks.system.home import home_folder

FILES = (".yaml", ".yml")

DATE_DIGITS = 8
"""Of a run's id; a shorter beginning may be that of many runs, or of a digest."""


def is_recipe(text: str) -> bool:
    """Return whether a text names a recipe in `conf/`, or a YAML file, which need not exist."""
    from trnflow.flows.recipes.files import recipe_names

    return text.endswith(FILES) or text in recipe_names()


def model_name(text: str, folder: Path | None = None) -> ModelName:
    """Return what a name of a model can mean, with a recipe's name in place of its YAML file. folder: what a relative
    path is joined to; None for the working directory. Raises ConfigError if the file can't be read."""
    name = parse_model(text)
    if not name.recipe.endswith(FILES):
        return name
    from trnflow.flows.recipes.recipe import load  # pydantic takes longer to import than a command that needs no recipe

    return name._replace(recipe=load(str((folder or Path()) / name.recipe)).name)


def root_of(text: str | None, root: str | None) -> str | None:
    """Return the root of the store in which a command looks for a model or a run; None for the default one.

    `root`, else the store of the recipe that `text` names, else TRNFLOW_STORE. Without these the store of the newest run of
    this machine that `text` names, by its recipe or id; where there is no default store, that of the newest run. Raises
    ConfigError as `load` does.
    """
    name = parse_model(text).recipe if text else ""
    if root or is_recipe(name):
        if root:
            return root
        from trnflow.flows.recipes.recipe import load, store_root

        return store_root(load(name))
    if os.environ.get(VARIABLE):
        return None
    home, newest = home_folder(), None
    default = Store(default_root(home), home)
    for begun in begun_runs(home):
        newest = newest or begun
        if name == begun.recipe or (len(name) > DATE_DIGITS and begun.run.startswith(name)):
            # the logs of a home that was copied name the place of the other one
            return None if default.run(begun.run) else begun.store
    return newest.store if newest and not default.is_made() else None
