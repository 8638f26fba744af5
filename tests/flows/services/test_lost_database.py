"""The database of the local Prefect server is deleted, was made by an older Prefect, or its disk is full: nothing but Prefect's
pages is lost."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.data import NAMES
from tests.chaos.house import House, wait_for
from tests.helpers.event_logs import runs_with_metrics
from tests.helpers.small_disk import fill, small_disk

pytestmark = pytest.mark.slow  # servers

NEVER = 30 * 86400
PREFECT_3_1 = "5952a5498b51"
"""The schema of November 2024."""
IMPATIENT = "from pathlib import Path; from trnflow.flows.services.deploy import deploy;"
IMPATIENT += " deploy(Path.cwd() / '.trnflow', Path.cwd(), 2.0)"
"""`trnflow deploy`, which waits 2 seconds for the schedule."""
RUN = ("run", NAMES.recipe, "--json", "tracking.enabled=false", "train.max_steps=400")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "house", NEVER)
    try:
        yield house
    finally:
        house.close()
        house.kill_all()


def schema(house: House) -> str:
    with contextlib.closing(sqlite3.connect(house.home / "prefect/prefect.db")) as database:
        (found,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(found)


def impatient(house: House) -> str:
    """Deploy, wait 2 seconds for the schedule, and return what the process said when it failed."""
    command = [sys.executable, "-c", IMPATIENT]
    done = subprocess.run(command, cwd=house.folder, env=house.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode, done.stdout
    return done.stderr


def test_a_database_that_is_deleted_in_mid_run_costs_pages_alone(house: House) -> None:
    """The run under way completes. A later one runs with Prefect or without; with a new server all is as before, and no result
    is lost."""
    house.up()
    command = [sys.executable, "-m", "trnflow", *RUN]
    run = subprocess.Popen(command, cwd=house.folder, env=house.environ, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: run.poll() is not None or runs_with_metrics(house.home), 300, "the training")
    for file in (house.home / "prefect").glob("prefect.db*"):
        file.unlink()
    out, _ = run.communicate(timeout=600)
    assert run.returncode == 0
    assert {stage["action"] for stage in json.loads(out)["stages"]} == {"ran"}
    house.must("run", NAMES.recipe, "--until", "tokenize_text", "tracking.enabled=false", "tokenize.max_length=12")
    house.must("down")
    house.up()
    house.declare()
    house.must("deploy")
    assert house.deployment()["parameters"]["recipe"] == NAMES.recipe
    again = json.loads(house.must(*RUN))["stages"]
    assert {stage["action"] for stage in again} == {"hit"}
    assert [stage["artifact"] for stage in again] == [stage["artifact"] for stage in json.loads(out)["stages"]]


@pytest.mark.nightly
def test_a_database_of_an_older_prefect_is_migrated(house: House) -> None:
    file = house.home / "prefect/prefect.db"
    file.parent.mkdir(parents=True)
    environ = house.environ | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{file}"}
    migrate = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y", "-r", PREFECT_3_1]
    done = subprocess.run(migrate, cwd=house.folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert schema(house) == PREFECT_3_1
    house.open()
    assert schema(house) != PREFECT_3_1
    assert house.deployment()["parameters"]["recipe"] == NAMES.recipe


@pytest.mark.nightly
def test_a_disk_that_fills_while_the_server_runs_is_named(house: House) -> None:
    """`deploy` says which disk is full instead of blaming prefect.yaml; with space again the same command works."""
    with small_disk(house.home, 48 << 20) as disk:
        disk.chmod(0o700)  # a home that others may write in is refused
        house.open()
        with contextlib.closing(sqlite3.connect(house.home / "prefect/prefect.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # SQLite writes on into what its log file holds already
        ballast = fill(disk)
        refused = wait_for(lambda: [done for done in [house.trnflow("deploy")] if done.returncode], 600, "deploy fails")
        assert f"the disk of {house.home / 'prefect'} is full" in refused[0].stderr, refused[0].stderr
        assert "fix: free some space there" in refused[0].stderr, refused[0].stderr
        ballast.unlink()
        house.must("deploy")
        assert house.close() == []


def test_a_full_disk_is_named_where_nothing_is_scheduled(house: House) -> None:
    """A scheduler that can't write plans nothing, and the server may still answer: here it is off, so it surely plans nothing.

    Without the full disk, the same command blames the scheduler.
    """
    house.environ["PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED"] = "false"
    with small_disk(house.home, 48 << 20) as disk:
        disk.chmod(0o700)
        house.up()
        house.declare()
        assert "Prefect's scheduler is off, or fails" in impatient(house)
        ballast = fill(disk, leave=1_000_000)  # the server can write on, but it is less than LEAST_FREE
        refused = impatient(house)
        assert f"no scheduled run after 2 s: the disk of {disk / 'prefect'} is full" in refused, refused
        ballast.unlink()
        assert house.close() == []
