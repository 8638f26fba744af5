"""Run each stage as a Prefect task run, and write its messages to Prefect's log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from trnflow.flows.display import report
from trnflow.flows.display.progress import Lines
from trnflow.flows.runner.graph import Node
from trnflow.flows.runner.plan import Step
from trnflow.flows.runner.stored import Stored
from trnflow.flows.services.run_view.artifacts import Page, describe
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.store import Store
from trnflow.tasks.system.redaction import raisable


class StageTasks:
    """Makes a Prefect task run of each stage, in the state `Cached` for a hit (`Around` of a run).

    A task run waits for those of the stages that it reads from, so that Prefect draws the real dependencies.
    """

    def __init__(self, page: Page, store: Store) -> None:
        self.page, self._store = page, store
        self._states: dict[str, State[Any]] = {}

    def __call__(self, step: Step, result: Callable[[], Stored]) -> Stored:
        settled: list[Stored] = []

        @task(name=step.name, task_run_name=step.name, cache_policy=NO_CACHE, persist_result=False)
        def run_stage() -> Any:
            try:
                settled.append(result())
            except Exception as error:  # Prefect keeps what is raised, and what caused it
                raise raisable(error) from None
            self._show(step, settled[0])
            cached = settled[0].action == "hit"  # on record, or made meanwhile by another run
            return Completed(name="Cached", message=settled[0].why) if cached else step.name

        wanted = (*step.node.inputs.values(), *step.node.after.values())
        names = dict.fromkeys(item.name for item in wanted if isinstance(item, Node))
        # a hit wants nothing of a deferred stage
        above = [self._states[name] for name in names if name in self._states]
        state = run_stage(return_state=True, wait_for=above)
        self._states[step.name] = state
        if state.is_completed():
            return settled[0]
        state.result()
        raise RuntimeError(f"the task run of {step.name} ended as {state.name}")

    def _show(self, step: Step, stored: Stored) -> None:
        """Show the stage's artifact on Prefect's page."""
        shown = replace(step)
        shown.take(stored)
        table = describe(shown, stored.artifact, self._store.url(stored.artifact.digest))
        description = f"{step.name}: {stored.action}"
        self.page.show(
            create_markdown_artifact, markdown=table, key=step.name.replace("_", "-"), description=description
        )


class PrefectLog(Reader):
    """Writes each stage's messages, progress, duration and metrics to the log of its task run."""

    def __init__(self) -> None:
        self._log: Lines | None = None

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "stage_begun":
            self._end()
            logger = get_run_logger()  # the thread that writes the lines has no run of its own
            self._log = Lines(lambda text, **fields: logger.info(text.strip()))
            self._log.begin(state.stages[event["stage"]])
        elif event["event"] == "note":
            get_run_logger().log(logging.WARNING if event["level"] == "warning" else logging.INFO, event["text"])
        elif event["event"] == "waits":
            get_run_logger().info("waits for %s", event["holder"])
        elif event["event"] == "stage_ended" and event["action"] != "skip":
            self._end()
            stage, action, took = event["stage"], event["action"], report.seconds(event["seconds"])
            figures = report.figures(event["metrics"] or event["facts"])
            get_run_logger().info("%s: %s in %s s %s", stage, action, took, figures)
        elif event["event"] == "stage_failed":
            self._end()
        elif self._log is not None:
            self._log.update(event)

    def _end(self) -> None:
        if self._log is not None:
            self._log.end()
            self._log = None
