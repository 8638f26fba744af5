"""The addresses of Prefect's and MLflow's pages."""

from __future__ import annotations

import os
from pathlib import Path

from trnflow.flows.recipes.recipe import TrackingConfig
from trnflow.flows.services.prefect_address import api_url
from trnflow.tasks.sources.paths import located_database
from trnflow.tasks.system.databases import fill_address
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
        uri = tracking_uri(home, tracking, folder)
        page = scrub(tracking_page(home, uri, tracking.experiment, tracking.uri))
    return [f"prefect: {prefect}", f"mlflow:  {page}"]


def tracking_uri(home: Path, tracking: TrackingConfig, folder: Path) -> str:
    """Return MLflow's address: `tracking.uri`, else MLFLOW_TRACKING_URI, else `mlflow.db` in `home`."""
    if tracking.uri:
        return located_database(fill_address(tracking.uri, "tracking.uri"), folder)
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}"
