"""The seconds that a firing of `retrain` takes that finds nothing to do, and where they go.

    python -m tests.bench.bench_firing [--firings 5]

A local server and worker; the seconds are those of the flow run's states, as the server recorded them: until the worker took the
run (Prefect asks every few seconds), its process ran the flow, and the flow had ended.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.chaos.data import rows
from tests.chaos.house import FINAL, House, wait_for


def fire(house: House) -> dict[str, float]:
    """Fire the deployment once, and return the seconds from one state of its run to the next."""
    run = house.api.post(f"deployments/{house.deployment()['id']}/create_flow_run", name="fired")["id"]
    ended: dict[str, Any] = {}

    def has_ended() -> bool:
        ended.update(house.api.get(f"flow_runs/{run}"))
        return ended["state_type"] in FINAL

    wait_for(has_ended, 900, "the firing ends")
    assert ended["state_type"] == "COMPLETED", ended["state"]
    states = house.api.get(f"flow_run_states/?flow_run_id={run}")
    times = {state["type"]: datetime.fromisoformat(state["timestamp"]) for state in states}
    return {
        "waits": (times["PENDING"] - times["SCHEDULED"]).total_seconds(),
        "starts": (times["RUNNING"] - times["PENDING"]).total_seconds(),
        "runs": (times["COMPLETED"] - times["RUNNING"]).total_seconds(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firings", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trnflow-firing-") as name:
        house = House(Path(name), every=7200)
        try:
            house.open()
            house.put(rows(400))
            print("trained", {name: round(value, 1) for name, value in fire(house).items()}, flush=True)
            for _ in range(options.firings):
                seconds = fire(house)
                after = seconds["starts"] + seconds["runs"]
                print(
                    *(f"{name} {value:.2f}" for name, value in seconds.items()),
                    f"taken to completed {after:.2f}",
                    flush=True,
                )
        finally:
            house.close()


if __name__ == "__main__":
    main()
