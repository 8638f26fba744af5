"""Prefect's task runners as workers: each shard is a task run, on processes of this machine, a Ray or a Dask cluster.

A runner starts with the first shard that must be made (Ray takes 5 to 10 s) and serves the whole run. Local clusters listen
on 127.0.0.1 and have no dashboard. Ray and Dask pickle what they carry: only use clusters that you trust.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ProcessPoolTaskRunner

from flows.part import make_apart
from flows.settings import TaskRunnerConfig
from flows.workers import Crew, Done, Job, Pending, Threads, Workers
from tasks.errors import ConfigError, MissingDependency, ProcessFailed, TrnflowError
from tasks.store import Store
from tasks.witness import unwatched

CONNECT_SECONDS = 8
PARENT_SECONDS = 1.0


@contextlib.contextmanager
def task_runner_workers(config: TaskRunnerConfig, store: Store) -> Iterator[Workers]:
    """The workers of one run. MissingDependency when the runner's package is not installed."""
    with contextlib.ExitStack() as stack:
        yield Threads(config.count) if config.kind == "threads" else TaskRunnerWorkers(config, store, stack)


class TaskRunnerWorkers:
    """See `flows.workers.Workers`. stack: ends the runner."""

    apart = True

    def __init__(self, config: TaskRunnerConfig, store: Store, stack: contextlib.ExitStack) -> None:
        self._config = config
        self._store = store
        self._runner = _made(config)
        self._stack = stack
        self._started = False
        # a stage's task run holds what can't travel: shards are task runs of the flow, beside it
        self._flow = contextvars.copy_context()

    @contextlib.contextmanager
    def at(self, stage: str) -> Iterator[Crew]:
        crew = _Crew(self, self._config.count, self._store)
        try:
            yield crew
        finally:
            crew.give_up()

    def submit(self, spec: dict[str, Any]) -> Any:
        """A Prefect future; the runner is started with the first."""
        name = f"{spec['document']['stage']} {' '.join(map(str, spec['arguments'].values()))}"
        shard = _task.with_options(name=spec["document"]["stage"], task_run_name=name)
        if self._started:
            return self._flow.run(self._runner.submit, shard, {"spec": spec})
        try:
            self._flow.run(self._stack.enter_context, self._runner)
            future = self._flow.run(self._runner.submit, shard, {"spec": spec})  # Dask connects only here
        except (OSError, RuntimeError, ConnectionError, TimeoutError) as error:
            raise _unreachable(self._config, error) from error
        self._started = True
        return future


def _unreachable(config: TaskRunnerConfig, error: Exception) -> ConfigError:
    where, said = config.address or "this machine", " ".join(str(error).split())[:200]
    return ConfigError(
        f"task_runner: {config.kind} can't be used on {where}: {said}",
        "check task_runner.address, or set task_runner.kind=threads",
    )


_task = task(cache_policy=NO_CACHE, persist_result=False)(make_apart)


@dataclass
class _Crew:
    workers: TaskRunnerWorkers
    count: int
    store: Store
    futures: dict[int, Any] = field(default_factory=dict)

    @property
    def ahead(self) -> int:
        return 2 * self.count

    def start(self, job: Job) -> Pending:
        with unwatched():
            future = self.workers.submit(job.spec(self.store))
        self.futures[id(future)] = future
        return lambda: self._wait(future)

    def _wait(self, future: Any) -> Done:
        with unwatched():
            try:
                made = future.result()
            except TrnflowError:
                raise
            except Exception as error:  # whatever a cluster makes of a worker that died
                said = " ".join(str(error).split())[:300]
                raise ProcessFailed(
                    f"a worker failed with {type(error).__name__}: {said}", "run again: finished shards are kept"
                ) from error
            finally:
                self.futures.pop(id(future), None)
        return Done({}, made["said"], made["artifact"], made["made"])

    def give_up(self) -> None:
        for future in self.futures.values():
            with contextlib.suppress(Exception):  # not all runners can; then it ends with the runner
                future.wrapped_future.cancel()


def _made(config: TaskRunnerConfig) -> Any:
    if config.kind == "processes":
        return ProcessPoolTaskRunner(max_workers=config.count, initializer=_end_with_the_flow, initargs=(os.getpid(),))
    try:
        return {"ray": _ray, "dask": _dask}[config.kind](config)
    except ImportError as error:
        raise MissingDependency(
            f"task_runner.kind: {config.kind} needs prefect-{config.kind}, which is not installed",
            f"pip install 'trnflow[{config.kind}]'",
        ) from error


def _ray(config: TaskRunnerConfig) -> Any:
    from prefect_ray import RayTaskRunner

    if config.address:
        return RayTaskRunner(address=config.address, init_kwargs={"log_to_driver": False})
    local = {"num_cpus": config.count, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    return RayTaskRunner(init_kwargs={**local, "log_to_driver": False, "logging_level": "ERROR"})


def _dask(config: TaskRunnerConfig) -> Any:
    from prefect_dask.task_runners import DaskTaskRunner

    if config.address:
        return DaskTaskRunner(address=config.address, client_kwargs={"timeout": CONNECT_SECONDS})
    # a thread a worker: a part is watched by its thread
    local = {"n_workers": config.count, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    return DaskTaskRunner(cluster_kwargs=local)


def _end_with_the_flow(flow: int) -> None:
    """In a worker process: a flow that is killed outright can't tell its workers to end. The kernel's own signal would come
    when the thread that started the worker ends, which is sooner."""

    def look() -> None:
        while os.getppid() == flow:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
