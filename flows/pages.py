"""Where the pages are, and how to open them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flows.settings import TrackingConfig
from tasks.tracking import tracking_page


def pages(home: Path, tracking: TrackingConfig) -> list[str]:
    """One line for Prefect and one for MLflow; reads a file, asks no server."""
    return [f"prefect: {_prefect(home)}", f"mlflow:  {_mlflow(home, tracking)}"]


def tracking_uri(home: Path, tracking: TrackingConfig) -> str:
    """The recipe's uri, else MLFLOW_TRACKING_URI, else a sqlite file beside the store."""
    return tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}"


def _prefect(home: Path) -> str:
    url = os.environ.get("PREFECT_API_URL")
    state = home / "prefect" / "server.json"
    if url is None and state.is_file():
        url = str(json.loads(state.read_text())["url"])
    return url.removesuffix("/api") if url else "`trnflow up` starts a local server and prints its address"


def _mlflow(home: Path, tracking: TrackingConfig) -> str:
    if not tracking.enabled:
        return "off (tracking.enabled)"
    page = tracking_page(home, tracking_uri(home, tracking))
    return page if page.startswith("http") else f"http://127.0.0.1:5000 after `{page}`"
