"""Errors of recipes outside the working directory, without what their files say: of a flow's parameters a path is free, and
Prefect shows the error to all who reach its API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trnflow.flows.recipes.files import is_file_elsewhere
from trnflow.flows.recipes.yaml_tree import OVERRIDE
from trnflow.tasks.errors import ConfigError


@contextmanager
def unquoted(name: str) -> Iterator[None]:
    """Keep of an error within the context the line alone, if `name` is a recipe's file outside the working directory and no
    override is wrong."""
    try:
        yield
    except ConfigError as error:
        if not is_file_elsewhere(name) or (error.message.startswith(OVERRIDE) and "\n" not in error.message):
            raise
        line = re.search(r"\.ya?ml:(\d+)", error.message)
        where = f"{name}, line {line[1]}" if line else name
        raise ConfigError(
            f"the recipe {where}: it can't be used, and an error quotes nothing of a file outside {Path.cwd()}",
            f"`trnflow config {name}` says what is wrong",
        ) from None
