"""The addresses of Prefect's and MLflow's pages."""

from __future__ import annotations

from pathlib import Path

from trnflow.flows.recipes.sections import TrackingConfig
from trnflow.flows.services.prefect_address import api_url
from trnflow.tasks.system.redaction import hide_secrets, scrub
from trnflow.tasks.tracking import tracking_page


def pages(home: Path, tracking: TrackingConfig, folder: Path = Path()) -> list[str]:
    """Return two lines: Prefect's and MLflow's pages. folder: what a relative `tracking.uri` is joined to."""
    url, page = api_url(home), "off (tracking.enabled)"
    prefect = (
        str(hide_secrets(url)).removesuffix("/api")
        if url
        else "`trnflow up` starts a local server and prints its address"
    )
    if tracking.enabled:
        page = scrub(tracking_page(home, tracking.uri, folder, tracking.experiment))
    return [f"prefect: {prefect}", f"mlflow:  {page}"]
