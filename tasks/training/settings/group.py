"""The base class of the groups of training settings, and the type of a fraction from 0 up to, not including, 1."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from trnflow.tasks.config import StageConfig

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Group(StageConfig):
    """Base class of a group of training settings."""

    model_config = ConfigDict(defer_build=True)  # a group is validated as a part of TrainConfig alone
