"""Define `PartMaker`, the interface through which the runner has parts of a stage made in other processes, on this
machine or on others. A part is a piece of a stage's work, such as some of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from trnflow.flows.recipes.recipe import TaskRunnerConfig
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError


class PartMaker(Protocol):
    """An object that makes parts of a stage (pieces of its work, such as some of the rows) in other processes, perhaps
    on other machines. The other processes read the parts' inputs from the store and write the results to the store.

    `trnflow.flows.services.task_runners.TaskRunner` implements this with Prefect's task runners.
    """

    def make(self, jobs: Iterable[Meta]) -> Iterator[Meta]:
        """Make the parts (pieces of a stage's work), write their results to the store, and yield a description of each
        result, in the order of `jobs`. While the caller waits for one result, other parts are made.

        Args:
            jobs: Descriptions of parts, made by `trnflow.flows.runner.parts.worker_process.part_job`.

        Yields:
            {"artifact": the digest of the part's artifact that the store has on record, "made": the digest of the
            artifact that was made now, "said": the list of the events (progress, metrics, messages) that the part
            reported}. The two digests differ if another worker had published a different result before.
        """


def refuse_task_runners(config: TaskRunnerConfig) -> None:
    """Raise ConfigError if the recipe asks for one of Prefect's task runners (`task_runner.kind` is not `threads`).
    Called for a run that does not use Prefect."""
    if config.kind != "threads":
        raise ConfigError(
            f"task_runner.kind: {config.kind} is one of Prefect's task runners, and this run is without Prefect",
            "leave out --direct, or set task_runner.kind=threads",
        )
