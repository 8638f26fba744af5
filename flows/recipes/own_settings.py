"""The section `own` of a recipe."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from pydantic import field_validator

from trnflow.tasks.config import NOT_KEYED, Hook, StageConfig


class OwnConfig(StageConfig):
    """What your own functions read beside what they are given."""

    files: tuple[str, ...] = ()
    """The files that your functions read, below the folder of the recipe's file. A file's content is in the key of each stage
    whose functions name it in a text."""
    identity: Annotated[Hook | None, NOT_KEYED] = None
    """A function of yours that returns the state of what `data.make` reads as a text, `package.module:name`, called with
    `data.arguments` whenever a plan is made. Another state loads the rows anew; `data.version` may then be left out."""

    @field_validator("files")
    @classmethod
    def _are_below_the_recipe(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if PurePath(name).is_absolute() or ".." in PurePath(name).parts or not PurePath(name).name:
                raise ValueError(f"{name!r} is no path below the recipe's folder: put the file there, and name it so")
        return value
