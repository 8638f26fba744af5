"""Many clients of the local server write at once: SQLite takes each write in its turn, and none is refused."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.flows.prefect_api import Api


def post(api: Api, path: str, **body: Any) -> Any:
    """What the server answers at once: an error such as 503 is raised, and the request is not repeated."""
    request = urllib.request.Request(f"{api.url}/{path}", json.dumps(body).encode(), api.headers)
    with urllib.request.urlopen(request, timeout=180) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
def test_no_write_is_refused(own_api: Api) -> None:
    """To create a flow run, and to set its state, Prefect reads first and then writes in the same transaction."""
    flow = post(own_api, "flows/", name="many")["id"]
    deployment = post(own_api, "deployments/", name="many", flow_id=flow)["id"]

    def live(number: int) -> str:
        run = post(own_api, f"deployments/{deployment}/create_flow_run", parameters={})["id"]
        for state in ("PENDING", "RUNNING", "COMPLETED"):
            found = post(own_api, f"flow_runs/{run}/set_state", state={"type": state})
        return str(found["state"]["type"])

    with ThreadPoolExecutor(12) as pool:
        assert [*pool.map(live, range(60))] == ["COMPLETED"] * 60
    assert "database is locked" not in (own_api.home / "prefect/server.log").read_text()
