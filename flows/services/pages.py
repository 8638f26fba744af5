"""The addresses of Prefect's and MLflow's pages."""

from __future__ import annotations

from pathlib import Path

from trnflow.flows.recipes.recipe import TrackingConfig
from trnflow.flows.services.prefect_address import api_url
from trnflow.tasks.system.redaction import hide_secrets, scrub
from trnflow.tasks.tracking import tracking_page


def pages(home: Path, tracking: TrackingConfig, folder: Path = Path()) -> list[str]:
    """Return two lines: Prefect's and MLflow's pages. folder: what a relative `tracking.uri` is joined to."""
    return [f"prefect: {_prefect(home)}", f"mlflow:  {_mlflow(home, tracking, folder)}"]


def _prefect(home: Path) -> str:
    url = api_url(home)
    return (
        str(hide_secrets(url)).removesuffix("/api")
        if url
        else "`trnflow up` starts a local server and prints its address"
    )


def _mlflow(home: Path, tracking: TrackingConfig, folder: Path) -> str:
    if not tracking.enabled:
        return "off (tracking.enabled)"
    return scrub(tracking_page(home, tracking.uri, folder, tracking.experiment))
