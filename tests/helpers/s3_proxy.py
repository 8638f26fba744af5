"""A proxy process in front of an S3 server that answers, now and then, as a store in trouble does.

    python -m tests.helpers.s3_proxy TARGET TROUBLES     prints its port

TROUBLES is a JSON file that is read at each request: a list of {"methods": "PUT POST", "part": "records/", "times": N, ...}.
The first that fits a request (its method; `part` in its path and query) is done, N times or always:
{"status": 403, "code": "AccessDenied"} answers so, {"delay": seconds} waits first, {"drop": "before"} closes the connection
instead of asking the server, {"drop": "after"} instead of passing on what it said, {"drop": "half"} in the middle of that,
{"size": "10"} says that of the object's length.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.helpers.serving import QuietHandler

PROJECT = Path(__file__).resolve().parents[2]
HOP = {"connection", "transfer-encoding", "keep-alive"}
DONE: Counter[str] = Counter()
LOCK = threading.Lock()


class Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    target: str
    troubles: Path

    def relay(self) -> None:
        body = self._body()
        trouble = self._trouble()
        time.sleep(trouble.get("delay", 0))
        if "status" in trouble:
            return self._refuse(trouble)
        if trouble.get("drop") == "before":
            return self._drop()
        connection = http.client.HTTPConnection(urlsplit(self.target).netloc, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if trouble.get("drop") == "after":
            return self._drop()
        self.send_response(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP | {"content-length"}:
                self.send_header(name, value)
        length = answer.getheader("content-length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", trouble.get("size") or length or "0")
        self.end_headers()
        if trouble.get("drop") == "half":
            self.wfile.write(data[: len(data) // 2])
            return self._drop()
        if self.command != "HEAD":
            self.wfile.write(data)
        return None

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = relay

    def _body(self) -> bytes:
        """Read whole, also what comes in chunks (and then is sent on in one)."""
        data = self.body()
        if self.headers.get("Transfer-Encoding"):
            del self.headers["Transfer-Encoding"]
            self.headers["Content-Length"] = str(len(data))
        return data

    def _trouble(self) -> dict[str, Any]:
        with LOCK:
            for trouble in json.loads(self.troubles.read_text()):
                known = json.dumps(trouble, sort_keys=True)
                fits = self.command in trouble["methods"].split() and trouble.get("part", "") in unquote(self.path)
                if fits and DONE[known] < trouble.get("times", 1 << 30):
                    DONE[known] += 1
                    return dict(trouble)
        return {}

    def _refuse(self, trouble: dict[str, Any]) -> None:
        said = f"<Error><Code>{trouble['code']}</Code><Message>{trouble['code']} of the test</Message></Error>".encode()
        self.answer(trouble["status"], said, {"Content-Type": "application/xml"})

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_of(target: str, troubles: Path) -> Iterator[str]:
    """Run a proxy process. Yield its URL."""
    command = [sys.executable, "-m", "tests.helpers.s3_proxy", target, str(troubles)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    Handler.target, Handler.troubles = sys.argv[1], Path(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda request, address: None  # a client that lost its patience
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
