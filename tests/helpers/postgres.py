"""A real PostgreSQL server in a folder of its own, from the programs that Debian's package `postgresql` installs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.chaos.outside import free_port

OWNER = "trnflow"
"""The database user that owns the databases."""
PASSWORD = "pg/S3cret%w0rd+9"
"""That user's password; its characters are written otherwise in a URL."""
SYSTEM_USER = "postgres"
"""PostgreSQL refuses to run as root: as root, the tests run the server as this user."""


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, of the newest installed version; None when there is none."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: int(file.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class Postgres:
    """A PostgreSQL server on a free port of 127.0.0.1, which may be killed and started again.

    Every connection needs the password. The test's environment must allow the user `postgres` when it runs as root.
    """

    def __init__(self) -> None:
        found = programs()
        assert found, "PostgreSQL is not installed"
        self.bin, self.port = found, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="trnflow-postgres-"))
        self.data = self.folder / "data"
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        for path in (self.folder, secret):
            if self._user:
                shutil.chown(path, *self._user)
        self._run("initdb", "-D", self.data, "-U", OWNER, "-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8")
        secret.unlink()
        self.start()

    @property
    def _user(self) -> tuple[str, str] | None:
        return (SYSTEM_USER, SYSTEM_USER) if os.geteuid() == 0 else None

    def start(self) -> None:
        options = (
            f"-c port={self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off"
        )
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-o", options, "-w", "-t", "60", "start")

    def kill(self) -> None:
        """End the server at once, as a crash does: connections break, and the next start recovers from its log."""
        self._run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")

    def close(self) -> None:
        with contextlib.suppress(AssertionError):
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, driver: str = "postgresql", *, has_password: bool = True) -> str:
        """Return the SQLAlchemy URL of a database. driver: `postgresql` or `postgresql+asyncpg`."""
        user = f"{OWNER}:{quote(PASSWORD, safe='')}" if has_password else OWNER
        return f"{driver}://{user}@127.0.0.1:{self.port}/{database}"

    def create(self, *databases: str) -> None:
        for database in databases:
            self._run("createdb", *self._connection, database)

    def rows(self, database: str, query: str) -> list[list[str]]:
        """Return what psql prints for a query: a list of columns for each row."""
        printed = self._run("psql", *self._connection, "-d", database, "-AtF", "\t", "-c", query)
        return [line.split("\t") for line in printed.splitlines()]

    def dump(self, database: str) -> str:
        return self._run("pg_dump", *self._connection, database)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def _connection(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", OWNER]

    def _run(self, program: str, *arguments: Any) -> str:
        """Run a program of PostgreSQL's and return what it printed. `pg_ctl start` leaves the server running, whose output
        must not be a pipe."""
        user = self._user
        options: dict[str, Any] = {"user": user[0], "group": user[1], "extra_groups": []} if user else {}
        environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PGPASSWORD": PASSWORD}
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [self.bin / program, *map(str, arguments)], cwd=self.folder, env=environ, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, timeout=120, **options,
            )  # fmt: skip
            output.seek(0)
            printed = output.read()
        assert done.returncode == 0, f"{program}: {printed}"
        return printed


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of the module's own; its absence is a visible skip."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    server = Postgres()
    try:
        yield server
    finally:
        server.close()
