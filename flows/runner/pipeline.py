"""The class `Pipeline`, by which the runner knows a pipeline: the names of its stages, the function that calls them,
and the check before a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trnflow.flows.recipes.files import nearest
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.call import Call, Stages
from trnflow.flows.runner.planning.planner import Planner
from trnflow.tasks.errors import ConfigError

Parent = tuple[dict[str, str], tuple[str, ...]]
"""(environment variables, modules to import) of a warm parent, the process that a stage's process is forked from."""


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that `trnflow.flows.runner.run` can run or plan.

    Attributes:
        call_stages: The pipeline function, such as `trnflow.flows.finetune.finetune`. Its arguments: the recipe, and the
            `Stages` object through which it calls its stages in order.
        stages: The names of the stages in that order.
        check: Raises a TrnflowError if a run is bound to fail; called before the first stage runs. Its arguments: the
            recipe, the planner (which has predicted what the run does), the stage after which the run stops (None: the
            last one), and a function that returns the `Parent` of a stage's call.
    """

    call_stages: Callable[[Recipe, Stages], Any]
    stages: tuple[str, ...]
    check: Callable[[Recipe, Planner, str | None, Callable[[Call], Parent]], None]

    def stage(self, name: str) -> str:
        """Return `name` if a stage has this name; else raise ConfigError, which suggests the nearest name."""
        if name not in self.stages:
            close = nearest(name, self.stages)
            fix = f"did you mean {close}?" if close else f"stages: {', '.join(self.stages)}"
            raise ConfigError(f"there is no stage {name}", fix)
        return name

    def until(self, stage: str | None) -> tuple[str, ...]:
        """Return the names of the stages up to and including `stage`, or all names for None."""
        return self.stages[: self.stages.index(stage) + 1] if stage else self.stages
