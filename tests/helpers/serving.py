"""HTTP servers of tests, and whether one answers."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypeVar

Server = TypeVar("Server", bound=HTTPServer)


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that prints nothing."""

    def body(self) -> bytes:
        """The request's body, whole or in chunks: Python's http.server leaves chunks to its users."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a response, to HEAD without its body."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Context in which a thread serves, and which closes the server."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def address_of(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
