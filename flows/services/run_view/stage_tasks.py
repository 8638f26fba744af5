"""Run each stage as a Prefect task run, and write its messages to Prefect's log."""

from __future__ import annotations

import logging
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from trnflow.flows.display import report
from trnflow.flows.display.progress import Log
from trnflow.flows.runner.call import Call, Outcome
from trnflow.flows.runner.executor import Listener
from trnflow.flows.runner.runner import Runner
from trnflow.flows.services.run_view.artifacts import Page, describe
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.system.redaction import raisable


class PrefectRunner(Runner):
    """A `Runner` that makes a Prefect task run of each stage, in the state `Cached` for a hit.

    A task run waits for those of the stages that it reads from, so that Prefect draws the real dependencies.
    """

    def __init__(self, *arguments: Any, page: Page, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.page = page
        self._states: dict[str, State[Any]] = {}

    def run_or_reuse(self, call: Call, outcome: Outcome | None) -> Outcome:
        settled: list[Outcome] = []

        @task(name=call.name, task_run_name=call.name, cache_policy=NO_CACHE, persist_result=False)
        def run_stage() -> Any:
            try:
                settled.append(Runner.run_or_reuse(self, call, outcome))
            except Exception as error:  # Prefect keeps what is raised, and what caused it
                raise raisable(error) from None
            self._show(settled[0])
            cached = settled[0].action == "hit"  # on record, or made meanwhile by another run
            return Completed(name="Cached", message=settled[0].why) if cached else settled[0].stage

        state = run_stage(return_state=True, wait_for=self._upstream(call))
        self._states[call.name] = state
        if state.is_completed():
            return settled[0]
        state.result()
        raise RuntimeError(f"the task run of {call.name} ended as {state.name}")

    def _upstream(self, call: Call) -> list[State[Any]]:
        digests = {item.digest for item in call.inputs.values() if isinstance(item, Artifact)}
        made = [name for name, done in self.outcomes.items() if done.artifact and done.artifact.digest in digests]
        wanted = (*made, *(needed.name for needed in call.after.values()))
        return [
            self._states[name] for name in wanted if name in self._states
        ]  # a hit wants nothing of a deferred stage

    def _show(self, outcome: Outcome) -> None:
        """Show the stage's artifact on Prefect's page."""
        if outcome.artifact is None:
            return
        table = describe(outcome, outcome.artifact, self.store.link(outcome.artifact.digest))
        said = f"{outcome.stage}: {outcome.action}"
        self.page.show(create_markdown_artifact, markdown=table, key=outcome.stage.replace("_", "-"), description=said)


class PrefectLog(Listener):
    """Writes each stage's messages, progress, duration and metrics to the log of its task run."""

    def __init__(self) -> None:
        self._log: Log | None = None

    def stage_started(self, call: Call, key: str) -> None:
        self._end()
        logger = get_run_logger()  # the thread that writes the lines has no run of its own
        self._log = Log(lambda text: logger.info(text.strip()))
        self._log.begin(call.name)

    def event(self, stage: str, event: Meta) -> None:
        for level in ("warn", "info"):
            if level in event:
                get_run_logger().log(logging.WARNING if level == "warn" else logging.INFO, event[level])
        if self._log is not None:
            self._log.event(event)

    def stage_ended(self, outcome: Outcome) -> None:
        self._end()
        said = report.highlights(outcome)
        get_run_logger().info("%s: %s in %s s %s", outcome.stage, outcome.action, report.seconds(outcome.seconds), said)

    def stage_failed(self, stage: str, error: BaseException) -> None:
        self._end()

    def _end(self) -> None:
        if self._log is not None:
            self._log.end()
            self._log = None
