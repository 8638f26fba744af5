"""What makes parts of a stage in other processes, on this machine or on others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from trnflow.flows.recipes.sections import TaskRunnerConfig
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.launch.job import Job


class PartMaker(Protocol):
    """Interface of what makes a stage's parts in other processes, which share the store: Prefect's task runners."""

    def make(self, jobs: Iterable[Job]) -> Iterator[Meta]:
        """Yield what `make_part_apart` returns for each job, in their order; meanwhile, other parts are made."""


def refuse_task_runners(config: TaskRunnerConfig) -> None:
    """Raise ConfigError if a recipe whose run does not use Prefect asks for one of its task runners."""
    if config.kind != "threads":
        raise ConfigError(
            f"task_runner.kind: {config.kind} is one of Prefect's task runners, and this run is without Prefect",
            "leave out --direct, or set task_runner.kind=threads",
        )
