"""Make the parts of stages on Prefect's task runners: processes of this machine, a Ray or a Dask cluster.

Each part is a task run. Ray and Dask pickle the data they send: use only clusters that you trust.
"""

from __future__ import annotations

import contextlib
import contextvars
import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ProcessPoolTaskRunner

from trnflow.flows.recipes.sections import TaskRunnerConfig
from trnflow.flows.runner.parts.worker_process import make_part_apart
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, MissingDependency, ProcessFailed, TrnflowError, is_interruption
from trnflow.tasks.launch.call import Call
from trnflow.tasks.system.redaction import add_secrets_of, fill_variables, hide_secrets, raisable, scrub, scrub_logs

CONNECT_SECONDS = 8
PARENT_SECONDS = 1.0


@contextlib.contextmanager
def task_runner(config: TaskRunnerConfig) -> Iterator[TaskRunner | None]:
    """Yield the task runner of a run, None for `task_runner.kind: threads`. Raises MissingDependency."""
    with contextlib.ExitStack() as stack:
        yield None if config.kind == "threads" else TaskRunner(config, stack)


class TaskRunner:
    """Makes each part in a task run (see `PartMaker`). stack: its end stops the task runner."""

    def __init__(self, config: TaskRunnerConfig, stack: contextlib.ExitStack) -> None:
        self._config = config
        self._runner = _made(config, stack)
        self._stack = stack
        self._started = False
        # The context of the flow: in the context of a stage's task run, a part's task would carry objects that can't be
        # pickled.
        self._flow = contextvars.copy_context()

    def make(self, calls: Iterable[Call]) -> Iterator[Meta]:
        """Make and store parts; yield, in order, {"artifact", "made", "events"} (`make_part_apart`).

        At most twice as many parts as workers wait at once.

        Raises:
            ProcessFailed: A worker died.
            ConfigError: The task runner can't be started or reached.
            TrnflowError: The error of a part.
        """
        todo = iter(calls)
        waiting = deque(self._submit(call) for call in islice(todo, 2 * self._config.count))
        try:
            while waiting:
                result = _result(waiting.popleft())
                waiting.extend(self._submit(call) for call in islice(todo, 1))
                yield result
        except BaseException as error:
            ended = is_interruption(error) and not isinstance(error, GeneratorExit)
            if ended and self._config.kind == "processes":
                # the only processes that the flow starts through multiprocessing; the pool would wait for them
                for worker in multiprocessing.active_children():
                    worker.kill()
                # the pool fails what waits; its thread ends with a traceback if a part is cancelled meanwhile
                waiting.clear()
            raise
        finally:
            for future in waiting:
                with contextlib.suppress(Exception):  # some runners can't cancel a part
                    future.wrapped_future.cancel()

    def _submit(self, call: Call) -> Any:
        """Submit one part and return its Prefect future. The first call starts the task runner."""
        stage = call.document["stage"]
        name = f"{stage} {' '.join(map(str, call.phase.arguments.values()))}"
        part, parameters = _task.with_options(name=stage, task_run_name=name), {"call": call.to_json()}
        if self._started:
            return self._flow.run(self._runner.submit, part, parameters)
        try:
            self._flow.run(self._stack.enter_context, self._runner)
            future = self._flow.run(self._runner.submit, part, parameters)  # Dask connects here
        except (OSError, RuntimeError, ConnectionError, TimeoutError) as error:
            raise _unreachable(self._config, error) from error
        self._started = True
        return future


def _result(future: Any) -> Meta:
    """Wait for a part and return its result. Raises TrnflowError, or ProcessFailed when the worker died."""
    try:
        result: Meta = future.result()
    except TrnflowError:
        raise
    except Exception as error:  # each kind of cluster has its own exception for a worker that died
        message = scrub(" ".join(str(error).split()))[:300]
        raise ProcessFailed(
            f"a worker failed with {type(error).__name__}: {message}", "run again: finished shards are kept"
        ) from error
    return result


def _unreachable(config: TaskRunnerConfig, error: Exception) -> ConfigError:
    where, message = hide_secrets(config.address) or "this machine", scrub(" ".join(str(error).split()))[:200]
    return ConfigError(
        f"task_runner: {config.kind} can't be used on {where}: {message}",
        "check task_runner.address, or set task_runner.kind=threads",
    )


@task(cache_policy=NO_CACHE, persist_result=False, name=make_part_apart.__name__)
def _task(call: Meta) -> Meta:
    """Make a part."""
    # Prefect writes errors to its database: secrets are hidden in them
    add_secrets_of({"root": call["root"]})
    scrub_logs()
    try:
        return make_part_apart(call)
    except Exception as error:
        raise raisable(error) from None


def _made(config: TaskRunnerConfig, stack: contextlib.ExitStack) -> Any:
    if config.kind == "processes":
        return ProcessPoolTaskRunner(max_workers=config.count, initializer=_end_with_the_flow, initargs=(os.getpid(),))
    try:
        return _ray(config, stack) if config.kind == "ray" else _dask(config)
    except ImportError as error:
        raise MissingDependency(
            f"task_runner.kind: {config.kind} needs prefect-{config.kind}, which is not installed",
            f"pip install 'trnflow[{config.kind}]'",
        ) from error


def _ray(config: TaskRunnerConfig, stack: contextlib.ExitStack) -> Any:
    if not config.address:  # ray reads these variables once, when it is imported
        # a local Ray cluster listens on all interfaces: a token made for the run keeps others out
        stack.enter_context(_environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}))
    from prefect_ray import RayTaskRunner

    if config.address:
        return RayTaskRunner(address=_address(config), init_kwargs={"log_to_driver": False})
    local = {"num_cpus": config.count, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    return RayTaskRunner(init_kwargs={**local, "log_to_driver": False, "logging_level": "ERROR"})


def _address(config: TaskRunnerConfig) -> str:
    """Return the cluster's address, with its `${NAME}` filled in."""
    return fill_variables(config.address or "", "task_runner.address")


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables of this process within the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _dask(config: TaskRunnerConfig) -> Any:
    from prefect_dask.task_runners import DaskTaskRunner

    if config.address:
        return DaskTaskRunner(address=_address(config), client_kwargs={"timeout": CONNECT_SECONDS})
    # one thread per worker, because each part is watched by the thread that runs it
    local = {"n_workers": config.count, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    # its ports run the pickles of whoever reaches them: a certificate made for the run keeps the machine's other users out
    return DaskTaskRunner(cluster_kwargs={**local, "security": True})


def _end_with_the_flow(flow: int) -> None:
    """End this worker process when the flow's process has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def look() -> None:
        # polled: the kernel's parent-death signal comes when the starting thread ends
        while os.getppid() == flow:
            time.sleep(PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
