"""The interface `PartMaker`: workers that make the parts of a stage in other processes, on this or other machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from flows.recipes.recipe import TaskRunnerConfig
from tasks.artifact import Meta
from tasks.errors import ConfigError


class PartMaker(Protocol):
    """Makes parts of a stage (pieces of its work, such as some of the rows) in other processes, perhaps on other
    machines. The parts' inputs and results pass through the store.

    `flows.services.task_runners.TaskRunner` implements this with Prefect's task runners.
    """

    def make(self, jobs: Iterable[Meta]) -> Iterator[Meta]:
        """Make the parts (pieces of a stage's work), put them on record in the store, and yield for each part what
        `flows.runner.parts.worker_process.make_part_apart` returns: {"artifact": the digest on record, "made": the
        digest of the result made now, "said": the part's events}. The results are in the order of `jobs`; later parts
        are made while a result is awaited.

        Args:
            jobs: Descriptions of parts, made by `flows.runner.parts.worker_process.part_job`.
        """


def refuse_task_runners(config: TaskRunnerConfig) -> None:
    """Raise ConfigError if the recipe asks for one of Prefect's task runners (`task_runner.kind` is not `threads`).
    Called for a run that does not use Prefect."""
    if config.kind != "threads":
        raise ConfigError(
            f"task_runner.kind: {config.kind} is one of Prefect's task runners, and this run is without Prefect",
            "leave out --direct, or set task_runner.kind=threads",
        )
