"""How long a lost retrain stays unnoticed: `python -m tests.chaos.window [both] [run]`, with the settings of a real installation.

A deployed retrain trains; then the processes of its flow run are killed with SIGKILL, once together with the worker, whose
successor starts at once (`both`), and once without (`run`). Prints for each the seconds from the kill to each state of the
flow run. Exit code 0 if it was marked as crashed, ran again and was promoted or kept; else 1.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.acts import flow_processes
from tests.chaos.data import NAMES, rows
from tests.chaos.house import House, is_final, time_of, wait_for

KILLED = ("both", "run")
NEVER = 30 * 86400
PATIENCE = 900.0
SLOW = ["train.max_steps=300", "train.checkpoint_every=20", "train.learning_rate=1e-4"]


def measured(house: House, *, with_worker: bool) -> list[tuple[str, float]]:
    """Kill a retrain, and return (state, seconds since the kill) of each state that its flow run took on afterwards."""
    house.put(rows(400 + with_worker))
    api, deployment = house.api, house.deployment()["id"]
    parameters = {"recipe": NAMES.recipe, "overrides": SLOW}
    run = api.post(f"deployments/{deployment}/create_flow_run", parameters=parameters)["id"]
    heartbeats = {"event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}

    def trains() -> bool:
        saved = [*(house.home / "store/partial").glob("*/step-*/COMMIT")]
        return bool(saved) and bool(api.post("events/filter", filter=heartbeats)["events"])

    wait_for(trains, PATIENCE, "a checkpoint and a heartbeat")
    assert house.worker is not None
    killed = datetime.now(UTC)
    for process in [*([house.worker.pid] if with_worker else []), *flow_processes(house)]:
        os.kill(process, signal.SIGKILL)
    if with_worker:
        house.worker.wait()
        house.start_worker()
    wait_for(lambda: is_over(api.get(f"flow_runs/{run}")), PATIENCE, "the retrain's end")
    states = api.get(f"flow_run_states/?flow_run_id={run}")
    found = [(state["name"], (time_of(state["timestamp"]) - killed).total_seconds()) for state in states]
    return [(name, seconds) for name, seconds in found if seconds > 0]


def is_over(run: dict[str, Any]) -> bool:
    return is_final(run) and run["state_type"] != "CRASHED"


def main(names: list[str]) -> int:
    if unknown := {*names} - {*KILLED}:
        sys.exit(f"no such kill: {', '.join(unknown)}; there are {', '.join(KILLED)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no process
    folder = Path(tempfile.mkdtemp(prefix="trnflow-window-"))
    house, is_good = House(folder, NEVER, "tracking: {enabled: false}\n"), True
    try:
        house.open()
        house.stop_schedule()
        for who in names or KILLED:
            found = measured(house, with_worker=who == "both")
            print(f"{who} killed: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in found), flush=True)
            states = [name for name, _ in found]
            is_good = is_good and "Crashed" in states and states[-1] in ("Promoted", "Kept")
    finally:
        house.close()
        house.kill_all()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
