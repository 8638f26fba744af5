"""The process of the local Prefect server: serve, and end when nothing uses the server.

    python server_process.py DESCRIPTOR SECONDS     in the folder `<home>/prefect`

DESCRIPTOR is the listening socket's. Requests and open connections are use; an active schedule, or `"stays": true` in
`server.json`, keeps the server. It ends when its folder is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import http.client
import json
import os
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    import uvicorn
    from prefect.server.database.configurations import AioSqliteConfiguration
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

LOCK, STATE = Path("server.lock"), Path("server.json")
"""The file lock of processes that start the server, and the server's record."""
LOOK_SECONDS = 10.0
"""The longest pause between two looks at what uses the server."""
END_SECONDS = 20.0
"""The longest time for an orderly end."""
TURN_SECONDS = 60.0
"""The longest wait of a transaction for its turn."""
PAGE = 200
"""How many deployments Prefect returns at once."""
DATABASE, TABLES = Path("prefect.db"), Path(__file__).with_name("empty_database.sql")
"""The server's database in its folder, and what makes an empty one with Prefect's tables."""


class Idleness:
    """Measures how long nothing has used the server."""

    def __init__(self, server: uvicorn.Server, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._seen: tuple[int, int] = (-1, -1)
        self._since = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing has used the server for `seconds`. Reading this after a use restarts the count."""
        seen = (self._server.server_state.total_requests, touched())
        if seen != self._seen or self._server.server_state.connections:
            self.begin_anew()
            self._seen = seen
        return time.monotonic() - self._since >= self._seconds

    @property
    def was_touched(self) -> bool:
        """Whether `server.lock` was touched since the server was last seen in use."""
        return touched() != self._seen[1]

    def begin_anew(self) -> None:
        """Restart the count of seconds without use at 0."""
        self._since = time.monotonic()


def touched() -> int:
    """Return when `server.lock` was touched last, in nanoseconds since 1970, or 0."""
    try:
        return LOCK.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def main() -> None:
    """Serve Prefect's API and page until the server is stopped or ends by itself."""
    gc.disable()  # during the imports, which makes them faster
    import socket

    import uvicorn
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    from trnflow.flows.services.login import LOGIN_PAGE, PAGE_PATH

    listener = socket.socket(fileno=int(sys.argv[1]))
    take_turns()
    make_database()
    app = create_app(final=True)
    app.router.routes.insert(0, Route(PAGE_PATH, lambda request: HTMLResponse(LOGIN_PAGE)))
    # a page of another site could else call the server by a name that it lets point here; any port: ssh forwards
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=own_names(), www_redirect=False)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    gc.freeze()
    gc.enable()
    threading.Thread(target=end_when_idle, args=(server, listener, float(sys.argv[2])), daemon=True).start()
    server.run(sockets=[listener])


def make_database() -> None:
    """Make the server's database with Prefect's tables if it is to be the file DATABASE, and there is none."""
    from prefect.settings import get_current_settings

    url = get_current_settings().server.database.connection_url
    own = url is not None and url.get_secret_value() == f"sqlite+aiosqlite:///{DATABASE.resolve()}"
    # a log that a lost database left (`prefect.db-wal`) would be applied to a new one; SQLite deletes it beside an empty file
    if not own or any(Path().glob(f"{DATABASE}*")):
        return
    # Prefect's migrations make the same tables in 3 s of processor time; later ones than the file's are applied to it
    with tempfile.TemporaryDirectory(dir=".") as folder:
        whole = Path(folder, DATABASE.name)
        with contextlib.closing(sqlite3.connect(whole)) as database:
            database.executescript(TABLES.read_text(encoding="utf-8"))
        whole.replace(DATABASE)


def own_names() -> list[str]:
    """Return the names by which the server may be called: this machine's, that of PREFECT_UI_URL, and those by which Prefect's
    services call the server that they are part of."""
    page = urllib.parse.urlsplit(os.environ.get("PREFECT_UI_URL", "")).hostname
    own = ["prefect-in-memory", "ephemeral-prefect"]  # no name that a page of another site could have
    return ["127.0.0.1", "localhost", "[::1]", *own, *([page] if page else [])]


def take_turns() -> None:
    """Let the server's transactions on SQLite run one at a time, each with the right to write from its beginning."""
    from prefect.server.database.configurations import AioSqliteConfiguration

    # most transactions read, then write: SQLite refuses the write if another wrote in between, and Prefect answers 503.
    # With turns 30 events and 4 flow runs take 16 s instead of 107.
    begin = AioSqliteConfiguration.begin_transaction
    turns: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def begin_in_turn(
        self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncIterator[AsyncSessionTransaction]:
        turn = turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with _at_most(turn, TURN_SECONDS), begin(self, session, with_for_update=True) as transaction:
            yield transaction

    AioSqliteConfiguration.begin_transaction = begin_in_turn  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def _at_most(turn: asyncio.Lock, seconds: float) -> AsyncIterator[None]:
    """Hold a lock, or go on without it after so many seconds."""
    try:
        await asyncio.wait_for(turn.acquire(), seconds)
    except TimeoutError:
        yield
        return
    try:
        yield
    finally:
        turn.release()


def end_when_idle(server: uvicorn.Server, listener: socket.socket, seconds: float) -> None:
    """Wait until nothing has used the server for `seconds` and no schedule is active, or until the server's folder is gone, in
    which no command could find it; then end the process."""
    while not server.started:
        time.sleep(0.1)
    port = listener.getsockname()[1]
    idleness = Idleness(server, seconds)
    while True:
        time.sleep(min(LOOK_SECONDS, seconds / 4))
        if not _folder_exists():
            os._exit(0)
        if not idleness.is_over:
            continue
        if is_scheduled(port) or not _ended(server, idleness):
            idleness.begin_anew()
            continue
        sys.stdout.write(f"ended by itself: no run, worker, page or active schedule used it for {seconds:.0f} s\n")
        sys.stdout.flush()
        time.sleep(END_SECONDS)
        os._exit(0)


def _folder_exists() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def is_scheduled(port: int) -> bool:
    """Return whether an unpaused deployment has an active schedule; True if the server can't be asked."""
    offset = 0
    while True:
        wanted = {"deployments": {"paused": {"eq_": False}}, "limit": PAGE, "offset": offset}
        try:
            deployments = _ask(port, "/api/deployments/filter", wanted)
        except (OSError, http.client.HTTPException, ValueError):
            return True
        if any(schedule["active"] for deployment in deployments for schedule in deployment["schedules"]):
            return True
        if len(deployments) < PAGE:
            return False
        offset += PAGE


def _ask(port: int, path: str, body: object) -> Any:
    from trnflow.flows.services.login import SERVER, encoded

    headers = {"Content-Type": "application/json", "Authorization": f"Basic {encoded(os.environ.get(SERVER, ''))}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
    if answer.status != 200:
        raise OSError(f"the server answers {answer.status}")
    return json.loads(content)


def _ended(server: uvicorn.Server, idleness: Idleness) -> bool:
    """Begin to end the server; return False if it has to stay."""
    from trnflow.flows.services.login import forget_login

    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # held until the process has ended: whoever starts or needs the server takes it, too, so no run loses its server
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = json.loads(STATE.read_text(encoding="utf-8"))
        if not idleness.was_touched and state["pid"] == os.getpid() and not state.get("stays"):
            forget_login(Path())
            STATE.unlink()
            server.should_exit = True
            return True
    except (OSError, ValueError, KeyError):  # another process starts or stops the server now
        pass
    os.close(lock)
    return False


if __name__ == "__main__":
    main()
