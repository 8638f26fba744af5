"""Write the Prefect artifacts (tables and links) of a run's page in Prefect, and their Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError

from trnflow.flows.display import report
from trnflow.flows.runner.plan import Step
from trnflow.flows.runner.run import Result
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.system.redaction import scrub

HEALTH_SECONDS = 10.0
"""Timeout of the request that asks whether Prefect's server is healthy."""


class Page:
    """Adds Prefect artifacts to a run's page. When Prefect's server does not answer, `lost` becomes True and no more
    are sent."""

    def __init__(self) -> None:
        self.lost = False

    def show(self, create: Callable[..., Any], *, is_vital: bool = True, **arguments: Any) -> Any:
        """Call one of Prefect's functions that create an artifact; return its result, None if the server failed, which
        is only logged. is_vital: whether a failure ends the sending of artifacts in this run."""
        if not self.answers(is_vital=is_vital):
            return None
        try:
            return create(**arguments)
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            by_server = isinstance(error, PrefectHTTPStatusError) and error.response.status_code >= 500
            self.lost = self.lost or (is_vital and by_server)  # its database is away, for example
            get_run_logger().warning("Prefect's server refused an artifact: %s", error)
            return None

    def answers(self, *, is_vital: bool = True) -> bool:
        """Return whether Prefect's server and its database are ready; False without a request once `lost` is True.

        is_vital: whether to set `lost` if not. False for updates of the progress, since another update follows.
        """
        if self.lost:
            return False
        with get_client(sync_client=True, httpx_settings={"timeout": HEALTH_SECONDS}) as client:
            there = _is_ready(client)
        self.lost = is_vital and not there
        return there


def _is_ready(client: SyncPrefectClient) -> bool:
    """Ask a server once: Prefect's own client would ask again for seconds, in which the run waits."""
    connection = client._client
    try:
        answer = httpx.Client.send(connection, connection.build_request("GET", "/ready"))
    except (httpx.HTTPError, OSError):
        return False
    return answer.status_code < 500


def describe(step: Step, artifact: Artifact, manifest: str) -> str:
    """Return a Markdown table about a stage's artifact. manifest: its URL, shown as text: browsers open no `file://`
    link."""
    rows = {
        "action": step.action, "key": step.key, "artifact": artifact.digest, "kind": artifact.kind,
        "manifest": f"`{scrub(manifest.removeprefix('file://'))}`",
        "files": len(artifact.files), "bytes": artifact.size, **step.metrics, **step.figures,
    }  # fmt: skip
    body = "\n".join(f"| {name} | {report.number(value)} |" for name, value in rows.items())
    return f"| {step.name} | |\n|---|---|\n{body}\n"


def run_table(result: Result) -> str:
    """Return a Markdown table of a run's stages: action, seconds, and up to four metrics or facts about the artifact."""
    rows = [f"| {o.name} | {o.action} | {report.seconds(o.seconds)} | {report.highlights(o)} |" for o in result.steps]
    return "\n".join(["| stage | action | seconds | key figures |", "|---|---|---|---|", *rows, ""])


def where_pages(result: Result, mlflow: str | None) -> str:
    """Return Markdown that says where the run's page (`trnflow report`) and its evaluation's report are. mlflow: its
    address, since a browser opens no local file from Prefect's page; None when the run is not in MLflow."""
    made = any(step.node.stage.role == "evaluation" and step.action == "ran" for step in result.steps)
    there = f", and the run in MLflow has the evaluation's `report.html` ({mlflow})" if made and mlflow else ""
    return f"\n`trnflow report {result.run}` writes the page of this run{there}.\n"


def retrain_table(document: Meta) -> str:
    """Return a retraining's reason, compared models and checks as Markdown. document: the JSON of `trnflow retrain`."""
    found = document["metrics"]
    rows = {name: f"`{document[name]}`" for name in ("champion", "challenger", "frozen") if document[name]}
    if found is not None:
        low, high = map(report.number, found["interval"])
        rows |= {
            f"{found['name']} of the challenger": report.number(found["challenger"]),
            f"{found['name']} of the champion before": report.number(found["champion"]),
            "difference": f"{report.number(found['difference'])} [{low}, {high}]",
            "margin": report.number(found["margin"]),
        }
    for check in document.get("checks", ()):
        value = "?" if check["value"] is None else report.number(check["value"])
        name = f"check {check['what']}" + (f" of {check['column']}" if check.get("column") else "")
        rows[name] = f"{check['result']}: {value}, limit {report.number(check['limit'])}"
    body = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    said = f"`{document['report']}` writes the page of the run.\n" if document["report"] else ""
    return f"{document['why']}\n\n| result | |\n|---|---|\n{body}\n\n{said}"
