"""Show on Prefect's page of a run its plan as a table, its progress in percent, and a name for the run."""

from __future__ import annotations

import time
from uuid import UUID

from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from trnflow.flows.display import report
from trnflow.flows.runner.forecast import ANYWAY, dollars, total
from trnflow.flows.runner.listener import Listener
from trnflow.flows.runner.plan import Step
from trnflow.flows.runner.progress.stage_progress import StageProgress
from trnflow.flows.services.run_view.artifacts import Page
from trnflow.tasks.artifact import Meta
from trnflow.tasks.system.redaction import scrub

UPDATE_SECONDS = 10.0
"""The shortest time between two updates of the progress."""

NAME_LENGTH = 80
"""The most characters of a flow run's name; Prefect's page cuts longer ones."""


class PlanPage(Listener):
    """Shows a run's plan and progress on Prefect's page; nothing if every stage is cached or skipped.

    A stage of unknown duration counts as the mean of the others.
    """

    def __init__(self, page: Page, price_per_hour: float) -> None:
        self.page, self._price = page, price_per_hour
        self._weights: dict[str, float] = {}
        self._ended: set[str] = set()
        self._at = StageProgress("")
        self._bar: UUID | None = None
        self._last = 0.0

    def planned(self, steps: list[Step]) -> None:
        due = [step for step in steps if step.action not in ANYWAY]
        if not due:
            return
        rows = plan_rows(steps, self._price)
        self.page.show(create_table_artifact, table=rows, key="plan", description=plan_summary(steps, self._price))
        known = [step.seconds for step in due if step.seconds]
        self._weights = dict.fromkeys((step.name for step in due), sum(known) / len(known) if known else 1.0)
        self._weights |= {step.name: step.seconds for step in due if step.seconds}
        self._bar = self.page.show(create_progress_artifact, progress=0.0, key="progress", description="the whole run")
        self._last = time.monotonic()

    def stage_started(self, step: Step) -> None:
        self._at = StageProgress(step.name)

    def event(self, stage: str, event: Meta) -> None:
        self._at.take(event)
        if time.monotonic() - self._last > UPDATE_SECONDS:
            self._update()

    def stage_ended(self, step: Step) -> None:
        self._ended.add(step.name)
        self._at = StageProgress("")
        if self._weights.keys() <= self._ended or time.monotonic() - self._last > UPDATE_SECONDS:
            self._update()

    @property
    def percent(self) -> float:
        """The share of the run's expected duration that is done, 0 to 100. A running stage counts with the share that
        it reported."""
        share = min(self._at.done / self._at.total, 1.0) if self._at.total else 0.0
        passed = sum(seconds for stage, seconds in self._weights.items() if stage in self._ended)
        passed += share * self._weights.get(self._at.stage, 0.0)
        return 100.0 * passed / sum(self._weights.values())

    def _update(self) -> None:
        if self._bar is not None:
            self._last = time.monotonic()
            share = round(self.percent, 1)
            self.page.show(update_progress_artifact, is_vital=False, artifact_id=self._bar, progress=share)


class RunName(Listener):
    """Names the flow run by recipe and reason, such as `demo: the data changed`, or by what `say` is given."""

    def __init__(self, page: Page, recipe: str) -> None:
        self.page, self._recipe = page, recipe

    def retrain_begins(self, why: str) -> None:
        self.say(why.partition(" (")[0].replace(f" of {self._recipe}", ""))

    def say(self, text: str) -> None:
        """Rename the flow run to `RECIPE: TEXT`, cut to 80 characters, with secrets hidden."""
        self.page.show(_rename, name=scrub(f"{self._recipe}: {text}")[:NAME_LENGTH])


def plan_rows(steps: list[Step], price_per_hour: float) -> list[Meta]:
    """Return a dict for each stage of a plan: name, action, expected seconds and dollars, and why. price_per_hour: USD;
    0 leaves out dollars."""
    rows = []
    for step in steps:
        costs = step.action not in ANYWAY
        row = {"stage": step.name, "action": step.action}
        row["expected seconds"] = report.seconds(step.seconds) if costs else ""
        if price_per_hour:
            known = step.seconds is not None and costs
            row["expected dollars"] = f"{dollars(step.seconds or 0.0, price_per_hour):.2f}" if known else ""
        rows.append({**row, "why": scrub(step.why)})
    return rows


def plan_summary(steps: list[Step], price_per_hour: float) -> str:
    """Return a line with the expected seconds and dollars of a run and the stages of unknown duration. price_per_hour:
    USD."""
    expected = total(steps, price_per_hour)
    cost = f", {expected['dollars']:.2f} dollars" if price_per_hour else ""
    unknown = f"; unknown: {', '.join(expected['unknown'])}" if expected["unknown"] else ""
    return f"Expected: {report.seconds(expected['seconds'])} seconds{cost}{unknown}"


def _rename(name: str) -> None:
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name)
