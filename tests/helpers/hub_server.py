"""A hub of one repository on this machine: enough of the hub's interface for the real client libraries to read from it.

`tests.helpers.hub_uploads` is a hub that also takes uploads."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.conftest import PROJECT
from tests.helpers.serving import QuietHandler, address_of, serving

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """A hub.

    files: path -> bytes; kind: `datasets` or `models`; repo: the repository's name; head: its newest commit;
    large: the files that are stored as large files (LFS), by their SHA-256; sizes: path -> bytes that the hub says a file
    has, where that is not what it holds; asked: paths of the files that were asked for."""

    files: dict[str, bytes]
    kind: str
    repo: str = "me/set"
    head: str = COMMIT
    large: Mapping[str, bytes] = {}
    sizes: Mapping[str, int] = {}
    asked: list[str]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked = []

    def size(self, name: str) -> int:
        return self.sizes.get(name, len(self.files[name]))

    def blob(self, name: str) -> str:
        """The name of a file among the blobs of a client's cache."""
        return hashlib.sha256(self.files[name]).hexdigest()


class Handler(QuietHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        repo, head = self.server.repo, self.server.head
        api = f"/api/{self.server.kind}/{repo}"
        resolved = re.fullmatch(rf"(?:/datasets)?/{repo}/resolve/[^/]+/(.+)", path)
        tree = re.fullmatch(rf"{api}/tree/(?:main|{head})/?(.*)", path)
        if path in (api, f"{api}/revision/main", f"{api}/revision/{head}"):
            siblings = [
                {"rfilename": name, "size": self.server.size(name), "blobId": self.server.blob(name)}
                for name in self.server.files
            ]
            self._json({"id": repo, "sha": head, "private": False, "tags": [], "siblings": siblings})
        elif path.startswith(f"{api}/revision/"):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(f"/api/{self.server.kind}/secret/"):
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif tree:
            self._json(self._tree(tree[1], "recursive=true" in self.path.lower()))
        elif resolved and resolved[1] in self.server.files:
            body = self.server.files[resolved[1]]
            self.server.asked.append(resolved[1])
            self.answer(200, body, {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": head})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound" if resolved else "RepoNotFound"})

    do_HEAD = do_GET

    def _json(self, document: object) -> None:
        # a base64 digest, as web frameworks such as Express write: no name of a file
        headers = {"Content-Type": "application/json", "ETag": 'W/"3b5-Yt+7fQ/kW0a="'}
        self.answer(200, json.dumps(document).encode(), headers)

    def _tree(self, folder: str, recursive: bool) -> list[dict[str, object]]:
        """The files and folders in a folder of the repository; recursive: also those below them."""
        entries: dict[str, dict[str, object]] = {}
        prefix = f"{folder}/" if folder else ""
        for name, body in self.server.files.items():
            if not name.startswith(prefix):
                continue
            head, _, below = name.removeprefix(prefix).partition("/")
            if below:
                entries[head] = {"type": "directory", "path": prefix + head, "oid": COMMIT}
            if recursive or not below:
                entries[name] = self._entry(name, body)
        return list(entries.values())

    def _entry(self, name: str, body: bytes) -> dict[str, object]:
        """A file as the hub lists it: its git digest, and of a large file its SHA-256."""
        oid = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        digest = hashlib.sha256(body).hexdigest()
        large = {"lfs": {"oid": digest, "size": len(body), "pointerSize": 134}} if digest in self.server.large else {}
        return {"type": "file", "path": name, "size": self.server.size(name), "oid": oid, **large}


def run_program(program: str, endpoint: str, home: Path, *arguments: str) -> Any:
    """What a program prints, as JSON, in a process whose hub is at `endpoint`. home: the client's cache."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environ |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environ, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def serve(files: dict[str, bytes], kind: str = "datasets") -> Iterator[str]:
    with hub_of(files, kind) as hub:
        yield address_of(hub)


@contextlib.contextmanager
def hub_of(
    files: dict[str, bytes], kind: str, sizes: Mapping[str, int] | None = None, handler: type[Handler] = Handler
) -> Iterator[Hub]:
    hub = Hub(("127.0.0.1", 0), handler)
    hub.files, hub.kind, hub.sizes = files, kind, sizes or {}
    with serving(hub):
        yield hub
