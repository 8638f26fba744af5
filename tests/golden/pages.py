"""What MLflow and Prefect show of the runs of a home, read by MLflow's own client and over Prefect's API."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from pathlib import Path
from typing import Any


def mlflow_runs(home: Path) -> list[dict[str, Any]]:
    """Return the MLflow runs of a home, oldest first, then its registered models."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    address = f"sqlite:///{home / 'mlflow.db'}"
    client = MlflowClient(address, address)
    runs = [run for one in client.search_experiments() for run in client.search_runs([one.experiment_id])]
    names = {run.info.run_id: run.info.run_name for run in runs}
    entries = []
    for run in sorted(runs, key=lambda run: (run.info.start_time, run.info.run_name)):
        parent = run.data.tags.get("mlflow.parentRunId")
        entries.append(
            {
                "name": run.info.run_name, "parent": names.get(parent), "status": run.info.status,
                "params": run.data.params, "tags": run.data.tags,
                "metrics": {name: curve(client, run.info.run_id, name) for name in run.data.metrics},
                "datasets": [[one.dataset.name, one.dataset.digest] for one in run.inputs.dataset_inputs],
                "files": files(client, run.info.run_id, None),
            }
        )  # fmt: skip
    models = [
        {"model": one.name, "aliases": one.aliases, "tags": one.tags, "versions": len(one.latest_versions)}
        for one in client.search_registered_models()
    ]
    return entries + models


def curve(client: Any, run: str, name: str) -> dict[str, float]:
    """Return a metric's last value at each step: a training that was killed has reported some steps twice."""
    history = sorted(client.get_metric_history(run, name), key=lambda one: one.timestamp)
    return {f"{name} {one.step}": one.value if one.value == one.value else "nan" for one in history}


def files(client: Any, run: str, folder: str | None) -> list[str]:
    found: list[str] = []
    for one in client.list_artifacts(run, folder):
        found += files(client, run, one.path) if one.is_dir else [one.path]
    return sorted(found)


def prefect_pages(home: Path) -> list[dict[str, Any]]:
    """Return the flow runs of the home's Prefect server with task runs and entries of their pages, oldest first."""
    url = json.loads((home / "prefect/server.json").read_text())["url"]
    pages = []
    for run in ask(url, "flow_runs/filter", sort="START_TIME_ASC", limit=200):
        mine = {"flow_runs": {"id": {"any_": [run["id"]]}}}
        tasks = ask(url, "task_runs/filter", sort="EXPECTED_START_TIME_ASC", limit=200, **mine)
        entries = ask(url, "artifacts/filter", limit=200, **mine)
        pages.append(
            {
                "name": run["name"], "state": run["state_name"], "parameters": run["parameters"], "tags": run["tags"],
                "message": (run["state"] or {}).get("message"),
                "tasks": sorted([one["name"], one["state_name"]] for one in tasks),
                "entries": sorted(
                    ([str(one["key"]), one["type"], one["description"], str(one["data"])] for one in entries), key=str
                ),
            }
        )  # fmt: skip
    return pages


def ask(url: str, path: str, **body: Any) -> Any:
    content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/{path}", content, headers, method="POST")
    with contextlib.closing(urllib.request.urlopen(request, timeout=180)) as answer:
        return json.loads(answer.read())
