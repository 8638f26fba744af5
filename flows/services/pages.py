"""The addresses of Prefect's and MLflow's pages."""

from __future__ import annotations

from pathlib import Path

from trnflow.flows.recipes.sections import TrackingConfig
from trnflow.flows.services.login import opened
from trnflow.flows.services.prefect_address import api_url
from trnflow.flows.services.prefect_server import running_server
from trnflow.tasks.system.redaction import hide_secrets, scrub
from trnflow.tasks.tracking import tracking_page


def pages(home: Path, tracking: TrackingConfig, folder: Path = Path()) -> list[str]:
    """Return two lines: Prefect's and MLflow's pages. folder: what a relative `tracking.uri` is joined to."""
    url, page = api_url(home), "off (tracking.enabled)"
    prefect = str(hide_secrets(url)).removesuffix("/api") if url else "`trnflow up` starts a local server"
    server = running_server(home)
    if server and server.get("login") and server["url"] == url:
        prefect += f"; open {opened(home).absolute().as_uri()}, which logs in"
    if tracking.enabled:
        page = scrub(tracking_page(home, tracking.uri, folder, tracking.experiment))
    return [f"prefect: {prefect}", f"mlflow:  {page}"]
