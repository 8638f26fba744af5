"""Names by which a recipe is given on the command line and in settings."""

from __future__ import annotations

from pathlib import Path

from trnflow.tasks.store.model_names import ModelName, parse_model

FILES = (".yaml", ".yml")


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
    """Return `root`, or without it the root of the store of the recipe that a text names; None if it names none. Raises
    ConfigError as `load` does."""
    recipe = parse_model(text).recipe if text else ""
    if root or not is_recipe(recipe):
        return root
    from trnflow.flows.recipes.recipe import load, store_root

    return store_root(load(recipe))
