"""The first local server of a home begins with Prefect's tables; `python -m tests.flows.services.test_empty_database`
writes the file that makes them anew, after an upgrade of Prefect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from trnflow.flows.services.login import encoded, read_login
from trnflow.flows.services.prefect_server import ensure_server, running_server, stop_server
from trnflow.flows.services.server_process import TABLES
from trnflow.tasks.errors import ProcessFailed


def test_the_tables_are_those_of_prefects_migrations(tmp_path: Path) -> None:
    file = tmp_path / "migrated.db"
    program = [sys.executable, "-m", "tests.flows.services.test_empty_database", str(file)]
    environ = {"PREFECT_HOME": str(tmp_path), "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{file}"}
    subprocess.run(program, env=environ, check=True)
    lines = sorted_lines(dump(file)), sorted_lines(TABLES.read_text(encoding="utf-8"))
    assert lines[0] == lines[1], "python -m tests.flows.services.test_empty_database"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    # a server that starts without tables answers with errors
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_MIGRATE_ON_START", "false")
    yield tmp_path / "home"
    stop_server(tmp_path / "home")


def test_a_first_server_makes_its_tables_without_migrations(home: Path) -> None:
    assert asked_for_runs(home) == []
    assert not list((home / "prefect").glob("tmp*"))


def test_a_log_that_a_lost_database_left_is_not_applied_to_a_new_one(home: Path) -> None:
    (home / "prefect").mkdir(parents=True)
    (home / "prefect" / "prefect.db-wal").write_bytes(b"of the lost one")
    with pytest.raises(ProcessFailed, match="no such table"):
        ensure_server(home)


def asked_for_runs(home: Path) -> object:
    ensure_server(home)
    server = running_server(home)
    assert server is not None
    login = f"Basic {encoded(read_login(home) or '')}"
    wanted = urllib.request.Request(
        f"{server['url']}/flow_runs/filter", b"{}", {"Content-Type": "application/json", "Authorization": login}
    )
    with urllib.request.urlopen(wanted) as answer:
        return json.load(answer)


def dump(file: Path) -> str:
    """Return the SQL that makes a database."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        return "".join(f"{line}\n" for line in database.iterdump())


def sorted_lines(sql: str) -> list[str]:
    """Return the lines without commas: migrations go through sets, whose order differs from process to process."""
    return sorted(line.strip().rstrip(",") for line in sql.splitlines())


def migrate() -> None:
    """Let Prefect make the database that its settings name."""
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        migrate()
    else:
        with tempfile.TemporaryDirectory() as folder:
            test_file = Path(folder, "migrated.db")
            with contextlib.suppress(AssertionError):
                test_the_tables_are_those_of_prefects_migrations(Path(folder))
            TABLES.write_text(dump(test_file), encoding="utf-8")
