"""A hundred events at once for one change of the data: one retrain trains, the others end as unchanged, and none is lost."""

from __future__ import annotations

import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.data import NAMES
from tests.chaos.house import House, is_final, time_of, wait_for
from tests.flows.prefect_api import Api
from tests.helpers.ledgers import entries, titles
from trnflow.flows.services.deploy import AT_ONCE

COUNT = 100
SECONDS = 3600.0
NEVER = 30 * 86400  # seconds between two firings of the schedule


class Asker(threading.Thread):
    """Asks the server every second for the flow runs that run, as a page would, and keeps what went wrong.

    Attributes:
        running: The number of running flow runs that each answer named.
        slowest: The longest answer, in seconds.
        errors: Of requests that were not answered within a minute, or with another status than 200.
    """

    def __init__(self, api: Api) -> None:
        super().__init__()
        self.api = api
        self.running: list[int] = []
        self.slowest = 0.0
        self.errors: list[str] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        body = b'{"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}'
        while not self.is_over.wait(1.0):
            begun = time.monotonic()
            try:
                request = urllib.request.Request(f"{self.api.url}/flow_runs/count", body, self.api.headers)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    self.running.append(int(answer.read()))
            except OSError as error:
                self.errors.append(f"{datetime.now(UTC):%H:%M:%S} {error}")
            self.slowest = max(self.slowest, time.monotonic() - begun)


@contextmanager
def asking(api: Api) -> Iterator[Asker]:
    asker = Asker(api)
    asker.start()
    try:
        yield asker
    finally:
        asker.is_over.set()
        asker.join()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A server, a worker, and the deployment `retrain` with its automations; no schedule fires."""
    house = House(tmp_path / "house", NEVER, "tracking: {enabled: false}\n")
    try:
        house.open()
        house.stop_schedule()
        yield house
    finally:
        house.close()
        house.kill_all()


def changed() -> dict[str, Any]:
    """The event that `trnflow watch` sends about changed data."""
    resource = {"prefect.resource.id": f"trnflow.recipe.{NAMES.name}", "prefect.resource.name": NAMES.name}
    payload = {"recipe": NAMES.recipe, "overrides": []}
    told = {"id": str(uuid.uuid4()), "occurred": datetime.now(UTC).isoformat(), "event": "trnflow.data.changed"}
    return told | {"resource": resource, "payload": payload}


def most_at_once(runs: list[dict[str, Any]]) -> int:
    """The largest number of flow runs that ran at the same time, by their own begin and end."""
    begun = [(time_of(run["start_time"]), 1) for run in runs]
    ended = [(time_of(run["end_time"]), -1) for run in runs]
    count = most = 0
    for _, change in sorted(begun + ended):
        count += change
        most = max(most, count)
    return most


@pytest.mark.nightly  # half an hour on two cores that many other processes share
def test_of_a_hundred_events_at_once_one_trains(house: House) -> None:
    begun = time.monotonic()
    with asking(house.api) as asker:
        house.api.post_list("events", [changed() for _ in range(COUNT)])
        wait_for(lambda: len(house.runs()) >= COUNT, SECONDS, "a flow run for each event")
        print(f"{COUNT} flow runs made after {time.monotonic() - begun:.0f} s")
        wait_for(lambda: all(map(is_final, house.runs())), SECONDS, "every flow run in a final state")
    runs = house.runs()
    print(
        f"{time.monotonic() - begun:.0f} s; slowest answer {asker.slowest:.1f} s; at most {most_at_once(runs)} at once"
    )
    assert Counter(run["state_name"] for run in runs) == {"Promoted": 1, "Unchanged": COUNT - 1}
    assert {run["run_count"] for run in runs} == {1}
    assert max(asker.running) <= int(AT_ONCE) and most_at_once(runs) <= int(AT_ONCE)
    assert asker.errors == []
    assert [record["outcome"] for record in house.records()] == ["completed"]
    assert len(house.trainings()) == 1
    assert len(titles(entries(house.home / "store", NAMES.name))) == 1
    wait_for(lambda: len(house.events()) == COUNT, 120, "an event of each flow run's end")
