"""A hub of one repository, `me/set`, on this machine: enough of the hub's interface for the real client libraries."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """files: path -> bytes; kind: `datasets` or `models`."""

    files: dict[str, bytes]
    kind: str


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        api = f"/api/{self.server.kind}/me/set"
        resolved = re.fullmatch(r"(?:/datasets)?/me/set/resolve/[^/]+/(.+)", path)
        if path == f"{api}/revision/main" or path == f"{api}/revision/{COMMIT}":
            siblings = [{"rfilename": name} for name in self.server.files]
            self._json({"id": "me/set", "sha": COMMIT, "private": False, "tags": [], "siblings": siblings})
        elif path.startswith(f"{api}/revision/"):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(f"/api/{self.server.kind}/secret/"):
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path.startswith(f"{api}/tree/{COMMIT}"):
            self._json(self._tree(path.removeprefix(f"{api}/tree/{COMMIT}").strip("/")))
        elif resolved and resolved[1] in self.server.files:
            body = self.server.files[resolved[1]]
            self._send(200, body, {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT})
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound" if resolved else "RepoNotFound"})

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        pass

    def _json(self, document: object) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _tree(self, folder: str) -> list[dict[str, object]]:
        """One level of the repository."""
        entries: dict[str, dict[str, object]] = {}
        prefix = f"{folder}/" if folder else ""
        for name, body in self.server.files.items():
            if not name.startswith(prefix):
                continue
            head, _, below = name.removeprefix(prefix).partition("/")
            oid = hashlib.sha1(body).hexdigest()
            file = {"type": "file", "path": name, "size": len(body), "oid": oid}
            entries[head] = {"type": "directory", "path": prefix + head, "oid": COMMIT} if below else file
        return list(entries.values())


@contextlib.contextmanager
def serve(files: dict[str, bytes], kind: str = "datasets") -> Iterator[str]:
    """The hub's address while it stands."""
    hub = Hub(("127.0.0.1", 0), Handler)
    hub.files, hub.kind = files, kind
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{hub.server_port}"
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
