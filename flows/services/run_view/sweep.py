"""Show a sweep on Prefect's page: a table, replaced after each trial."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from trnflow.flows.display import report
from trnflow.flows.services.run_view.artifacts import Page
from trnflow.tasks.artifact import Meta
from trnflow.tasks.system.redaction import hide_secrets, scrub, scrub_all

COUNTED = ("completed", "pruned", "failed")
"""The states of trials that have ended and are not repeated."""


class SweepPage:
    """Shows a sweep on the page of its flow run: a log line for each trial that ends, and a table of all.

    Create it in the flow's thread: threads of trials have no flow run in their context, so calls run in a copy of this
    one's.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self._context = copy_context()
        self._table: UUID | None = None

    def say(self, line: str) -> None:
        """Write a line to the log of the flow run."""
        self._context.copy().run(lambda: get_run_logger().info(scrub(line)))

    def show(self, content: Mapping[str, Any]) -> None:
        """Create the table of the trials, or replace its rows. content: of sweep.json; secrets are hidden."""
        self._context.copy().run(self._show, scrub_all(hide_secrets(content)))

    def _show(self, content: Mapping[str, Any]) -> None:
        shown = {"table": trial_rows(content), "description": sweep_summary(content)}
        if self._table is None:
            self._table = self.page.show(create_table_artifact, is_vital=False, key="sweep", **shown)
        else:
            self.page.show(_replace, is_vital=False, number=self._table, **shown)


def trial_rows(content: Mapping[str, Any]) -> list[Meta]:
    """Return a dict for each trial in the content of sweep.json."""
    names = list(dict.fromkeys(name for trial in content["trials"] for name in trial["settings"]))
    return [
        {
            "trial": trial["number"],
            "state": trial["state"],
            content["metric"]: "" if trial["value"] is None else report.number(trial["value"]),
            **{name: report.number(trial["settings"].get(name, "")) for name in names},
            "run": trial["run"] or "",
            "error": trial["error"] or "",
        }
        for trial in content["trials"]
    ]


def sweep_summary(content: Mapping[str, Any]) -> str:
    """Return one line: how many trials have ended, and the best. content: of sweep.json."""
    ended = sum(trial["state"] in COUNTED for trial in content["trials"])
    best = content["best"]
    found = f"; the best is trial {best['number']}: {content['metric']} {report.number(best['value'])}" if best else ""
    winner = f"; its whole run is {content['winner']['run']}" if content["winner"] else ""
    return f"Sweep {content['study']}: {ended} trials ended{found}{winner}"


def _replace(number: UUID, table: list[Meta], description: str) -> None:
    with get_client(sync_client=True) as client:
        client.update_artifact(number, ArtifactUpdate(data=json.dumps(table), description=description))
