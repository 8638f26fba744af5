"""Show on Prefect's page of a run its plan as a table, its progress in percent, and a name for the run."""

from __future__ import annotations

import time
from uuid import UUID

from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from trnflow.flows.display import report
from trnflow.flows.runner.forecast import ANYWAY, dollars, total
from trnflow.flows.services.run_view.artifacts import Page
from trnflow.tasks.artifact import Meta
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.events.event_types import PlannedStage, stages_of
from trnflow.tasks.system.redaction import scrub

UPDATE_SECONDS = 10.0
"""The shortest time between two updates of the progress."""

NAME_LENGTH = 80
"""The most characters of a flow run's name; Prefect's page cuts longer ones."""


class PlanPage(Reader):
    """Shows a run's plan and progress on Prefect's page; nothing if every stage is cached or skipped."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._bar: UUID | None = None
        self._last = 0.0

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "planned":
            self._begin(stages_of(event), state.price_per_hour)
        elif event["event"] in ("progress", "metrics", "stage_ended"):
            is_over = event["event"] == "stage_ended" and state.share >= 1.0
            if is_over or time.monotonic() - self._last > UPDATE_SECONDS:
                self._update(state)

    def _begin(self, stages: list[PlannedStage], price_per_hour: float) -> None:
        if all(one["action"] in ANYWAY for one in stages):
            return
        rows = plan_rows(stages, price_per_hour)
        summary = plan_summary(stages, price_per_hour)
        self.page.show(create_table_artifact, table=rows, key="plan", description=summary)
        self._bar = self.page.show(create_progress_artifact, progress=0.0, key="progress", description="the whole run")
        self._last = time.monotonic()

    def _update(self, state: RunState) -> None:
        if self._bar is not None:
            self._last = time.monotonic()
            share = round(100.0 * state.share, 1)
            self.page.show(update_progress_artifact, is_vital=False, artifact_id=self._bar, progress=share)


class RunName(Reader):
    """Names the flow run by recipe and reason, such as `demo: the data changed`, or by what `say` is given."""

    def __init__(self, page: Page, recipe: str) -> None:
        self.page, self._recipe = page, recipe

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "run_begun" and "why" in event:
            self.say(event["why"].partition(" (")[0].replace(f" of {self._recipe}", ""))

    def say(self, text: str) -> None:
        """Rename the flow run to `RECIPE: TEXT`, cut to 80 characters, with secrets hidden."""
        self.page.show(_rename, name=scrub(f"{self._recipe}: {text}")[:NAME_LENGTH])


def plan_rows(stages: list[PlannedStage], price_per_hour: float) -> list[Meta]:
    """Return a dict for each stage of a plan: name, action, expected seconds and dollars, and why. price_per_hour: USD;
    0 leaves out dollars."""
    rows = []
    for one in stages:
        costs = one["action"] not in ANYWAY
        row = {"stage": one["stage"], "action": one["action"]}
        row["expected seconds"] = report.seconds(one["seconds"]) if costs else ""
        if price_per_hour:
            known = one["seconds"] is not None and costs
            row["expected dollars"] = f"{dollars(one['seconds'] or 0.0, price_per_hour):.2f}" if known else ""
        rows.append({**row, "why": one["why"]})
    return rows


def plan_summary(stages: list[PlannedStage], price_per_hour: float) -> str:
    """Return a line with the expected seconds and dollars of a run and the stages of unknown duration. price_per_hour:
    USD."""
    sums = total(stages, price_per_hour)
    cost = f", {sums['dollars']:.2f} dollars" if price_per_hour else ""
    rest = f"; unknown: {', '.join(sums['unknown'])}" if sums["unknown"] else ""
    return f"Expected: {report.seconds(sums['seconds'])} seconds{cost}{rest}"


def _rename(name: str) -> None:
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name)
