"""Who makes the parts of a stage: threads of this process, or workers elsewhere that take and give through the store.

`Threads` serves every run; Prefect's task runners (`flows.task_runners`) serve those under Prefect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flows.settings import TaskRunnerConfig
from tasks.artifact import Input, Meta
from tasks.config import StageConfig
from tasks.errors import ConfigError
from tasks.launch.job import name_of, portable
from tasks.stage import Stage, make_part
from tasks.store import Store


@dataclass(frozen=True)
class Job:
    """One part, with all that making and publishing it needs. inputs: of `make`, by parameter; arguments: which part;
    folder: where it comes to lie, if it is made here; kind, document: of the shard; journal: of the stage's attempt; replace:
    a record that is there already."""

    make: Callable[..., Meta]
    config: StageConfig
    inputs: Mapping[str, Input]
    arguments: Meta
    folder: Path
    stage: Stage
    kind: str
    document: Meta
    journal: Meta
    replace: bool

    def spec(self, store: Store) -> Meta:
        """The same as JSON, for `flows.part.make_apart`."""
        root = str(Path(store.root).absolute()) if store.is_local and "://" not in store.root else store.root
        return {
            "store": root,
            "home": str(store.home.absolute()),
            "stage": name_of(self.stage.function),
            "make": name_of(self.make),
            "config_type": name_of(type(self.config)),
            "config": portable(self.config),
            "inputs": {name: item.digest for name, item in self.inputs.items()},
            "arguments": self.arguments,
            "kind": self.kind,
            "document": self.document,
            "attempt": self.journal["attempt"],
            "started": self.journal["started"],
            "replace": self.replace,
        }


@dataclass(frozen=True)
class Done:
    """A part that was made. artifact: the published one, of which `made` is what this run made; None when it lies in the job's
    folder, unpublished, with its metadata in `meta`."""

    meta: Meta
    said: list[Meta]
    artifact: str | None = None
    made: str | None = None


Pending = Callable[[], Done]
"""Waits for a part."""


class Crew(Protocol):
    """ahead: how many parts to hand out before the first is waited for."""

    @property
    def ahead(self) -> int: ...

    def start(self, job: Job) -> Pending: ...


class Workers(Protocol):
    """apart: they are other processes, and take their inputs from the store."""

    @property
    def apart(self) -> bool: ...

    def at(self, stage: str) -> contextlib.AbstractContextManager[Crew]:
        """Those who make one stage's parts; what is not done when it is left is given up."""


class Threads:
    """Of this process. Tokenizers and numpy free the GIL, so one part is tokenised while another is put together."""

    apart = False

    def __init__(self, count: int) -> None:
        self._count = count

    @contextlib.contextmanager
    def at(self, stage: str) -> Iterator[Crew]:
        # its threads start in the stage's own, so what they read is seen (tasks.witness)
        pool = ThreadPoolExecutor(self._count, thread_name_prefix=stage)
        try:
            yield _Pool(pool, self._count)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class _Pool:
    pool: ThreadPoolExecutor
    count: int

    @property
    def ahead(self) -> int:
        return self.count + 1

    def start(self, job: Job) -> Pending:
        future: Future[Done] = self.pool.submit(_make_here, job)
        return future.result


def _make_here(job: Job) -> Done:
    said: list[Meta] = []
    return Done(make_part(job.make, job.config, job.inputs, job.arguments, job.folder, said.append), said)


def workers_for(config: TaskRunnerConfig) -> Workers:
    """Of a run without Prefect. ConfigError when the recipe wants one of Prefect's task runners."""
    if config.kind != "threads":
        raise ConfigError(
            f"task_runner.kind: {config.kind} is one of Prefect's task runners, and this run is without Prefect",
            "leave out --direct, or set task_runner.kind=threads",
        )
    return Threads(config.count)
