"""The program of the local Prefect server's process: serve, and end when nothing has used the server for a while.

    python server_process.py DESCRIPTOR SECONDS     in the folder `<home>/prefect`

DESCRIPTOR is that of the listening socket. A run, a worker and an open page send requests or hold a connection (a
websocket); uvicorn counts both. After SECONDS without a request or connection the server asks its own API for active
schedules, and ends if there are none. Processes are not watched, so a killed run that the database still shows as
running does not keep the server.

No run loses its server while the server ends. A process that needs the server first takes the lock `server.lock` and
touches the file (`start_server`). The server takes the same lock before it ends. If the file was touched since the
server last checked, the server stays. Else it removes `server.json` and keeps the lock until its process has ended; a
run that waits for the lock then starts a new server.

A server that `trnflow up` started or used has `"stays": true` in `server.json` and does not end by itself. A server
whose API can't be asked for schedules does not end either.

The program serves what `prefect server start` serves, without loading Prefect's command line (1.5 s), and lets
transactions on SQLite take turns (`take_turns`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    import uvicorn
    from prefect.server.database.configurations import AioSqliteConfiguration
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

LOCK, STATE = Path("server.lock"), Path("server.json")
"""The file lock of processes that start the server, and the server's record. Both are in the working directory."""
LOOK_SECONDS = 10.0
"""The longest pause between two looks at what uses the server."""
END_SECONDS = 20.0
"""The longest time for an orderly end; then the process exits."""
TURN_SECONDS = 60.0
"""The longest time that a transaction waits for its turn; then it waits for SQLite's own lock, for another 60 s."""
PAGE = 200
"""How many deployments Prefect returns at once."""


class Idleness:
    """Measures how long no process or page has used the local Prefect server. Use is a request, an open connection, or
    a touch of the file `server.lock`, which a process touches before it uses the server.

    Args:
        server: The server, which counts requests and connections.
        seconds: The time without use after which the server may end.
    """

    def __init__(self, server: uvicorn.Server, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._seen: tuple[int, int] = (-1, -1)
        self._since = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing has used the server for `seconds`.

        Reading this property also restarts the count of seconds, if the server was used: a request came or
        `server.lock` was touched since the property was read last, or a connection is open now."""
        seen = (self._server.server_state.total_requests, touched())
        if seen != self._seen or self._server.server_state.connections:
            self.begin_anew()
            self._seen = seen
        return time.monotonic() - self._since >= self._seconds

    @property
    def was_touched(self) -> bool:
        """Whether a process that needs the server touched the file `server.lock` since `is_over` last found the server
        in use."""
        return touched() != self._seen[1]

    def begin_anew(self) -> None:
        """Restart the count of seconds without use at 0."""
        self._since = time.monotonic()


def touched() -> int:
    """Return when the file `server.lock` in the working directory was touched last, in nanoseconds since 1970; 0 if
    there is no such file. A process that needs the local Prefect server touches the file."""
    try:
        return LOCK.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def main() -> None:
    """Serve Prefect's API and page until the server is stopped or ends by itself.

    Arguments of the process: the descriptor of a listening socket, and the seconds without use after which the server
    ends."""
    gc.disable()  # during the imports, which makes them faster
    import socket

    import uvicorn
    from prefect.server.api.server import create_app

    listener = socket.socket(fileno=int(sys.argv[1]))
    take_turns()
    server = uvicorn.Server(uvicorn.Config(create_app(final=True), log_level="warning"))
    gc.freeze()
    gc.enable()
    watch = threading.Thread(target=end_when_idle, args=(server, listener, float(sys.argv[2])), daemon=True)
    watch.start()
    server.run(sockets=[listener])


def take_turns() -> None:
    """Change Prefect's server in this process, so that its transactions on a SQLite database run one at a time. Has no
    effect on PostgreSQL.

    Most transactions read first and write then (BEGIN DEFERRED). If another one writes in between, SQLite refuses the
    write at once, and Prefect answers 503; others wait inside SQLite, which is not fair, for up to 60 s with a
    connection of the pool. A hundred events at once locked the server for minutes, and some of the flow runs were never
    made. One at a time, each with the right to write from its beginning, 30 events and 4 flow runs took 16 s instead of
    107 s.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

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
    """Hold a lock, or go on without it if it does not come within so many seconds."""
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
    """Wait until nothing has used the server for `seconds`, then end the server and this process. Runs in its own
    thread.

    The server does not end while a deployment has an active schedule, nor if it was asked to stay (`trnflow up`).
    listener: the server's listening socket; the port is read from this socket."""
    while not server.started:
        time.sleep(0.1)
    port = listener.getsockname()[1]
    idleness = Idleness(server, seconds)
    while True:
        time.sleep(min(LOOK_SECONDS, seconds / 4))
        if not idleness.is_over:
            continue
        if is_scheduled(port) or not _ended(server, idleness):
            idleness.begin_anew()
            continue
        sys.stdout.write(f"ended by itself: no run, worker, page or active schedule used it for {seconds:.0f} s\n")
        sys.stdout.flush()
        time.sleep(END_SECONDS)
        os._exit(0)


def is_scheduled(port: int) -> bool:
    """Ask the server on a port of this machine whether a deployment that is not paused has an active schedule. True also if
    it can't be asked."""
    wanted: dict[str, Any] = {"deployments": {"paused": {"eq_": False}}, "limit": PAGE, "offset": 0}
    while True:
        try:
            found = _ask(port, "/api/deployments/filter", wanted)
        except (OSError, http.client.HTTPException, ValueError):
            return True
        if any(schedule["active"] for deployment in found for schedule in deployment["schedules"]):
            return True
        if len(found) < PAGE:
            return False
        wanted["offset"] += PAGE


def _ask(port: int, path: str, body: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
    if answer.status != 200:
        raise OSError(f"the server answers {answer.status}")
    return json.loads(content)


def _ended(server: uvicorn.Server, idleness: Idleness) -> bool:
    """Begin to end the server, and keep the lock until the process has ended. Return False if the server has to stay."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = json.loads(STATE.read_text(encoding="utf-8"))
        if not idleness.was_touched and state["pid"] == os.getpid() and not state.get("stays"):
            STATE.unlink()
            server.should_exit = True
            return True
    except (OSError, ValueError, KeyError):  # another process starts or stops the server now
        pass
    os.close(lock)
    return False


if __name__ == "__main__":
    main()
