"""A hub on this machine that takes uploads: it creates repositories, stores large files (LFS) and makes commits.

The read side is `tests.helpers.hub_server`. Requests are checked as the real hub checks them: a token for everything that
writes, digests and sizes of large files, the parent of a commit, and that a commit names only files that were uploaded.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.helpers.hub_server import Handler, Hub
from tests.helpers.serving import serving

TOKEN = "hf_a-token-of-the-test"
LARGE = (".safetensors", ".npz", ".bin")

Refusal = tuple[int, str]
"""A status, and what the hub says."""


class UploadHub(Hub):
    """A hub with one repository, which exists after its creation.

    Attributes:
        commits: Of each commit its summary and the repository's files after it.
        large: The large files that were uploaded, by their SHA-256; committed or not.
        asked: Each request as `METHOD path`.
        ignored: Files that the repository's .gitignore names.
        refuse: Called with the method and path of each request; what it returns is the answer. None: the request is served.
    """

    commits: list[tuple[str, dict[str, bytes]]]
    large: dict[str, bytes]
    asked: list[str]
    ignored: tuple[str, ...] = ()
    refuse: Callable[[str, str], Refusal | None]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def names(self) -> set[str]:
        """The files of the newest commit, without what the hub makes itself."""
        return set(self.files) - {".gitattributes"}

    def commit(self, summary: str, files: dict[str, bytes]) -> None:
        self.commits.append((summary, files))
        self.files = files
        self.head = hashlib.sha1(f"{len(self.commits)} {summary}".encode()).hexdigest()


class UploadHandler(Handler):
    server: UploadHub

    def do_GET(self) -> None:
        if self._is_served():
            path = self.path.split("?")[0]
            if path.startswith(f"/api/models/{self.server.repo}") and not self.server.commits:
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            else:
                super().do_GET()

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        body = self.body()
        if not self._is_served():
            return
        digest = self.path.removeprefix("/large/")
        if hashlib.sha256(body).hexdigest() != digest:
            self.answer(400, b"other bytes")
            return
        self.server.large[digest] = body
        self.answer(200)

    def do_POST(self) -> None:
        body = self.body()
        if not self._is_served():
            return
        path, repo = urlsplit(self.path).path, self.server.repo
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._say(401, "Invalid username or password.")
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._validate(json.loads(body)["content"])
        elif path == f"/api/models/{repo}/preupload/main":
            self._json({"files": [self._upload_mode(file) for file in json.loads(body)["files"]]})
        elif path == f"/{repo}.git/info/lfs/objects/batch":
            self._json({"transfer": "basic", "objects": [self._upload(one) for one in json.loads(body)["objects"]]})
        elif path == "/large/verify":
            self._json({}) if json.loads(body)["oid"] in self.server.large else self._say(404, "no such object")
        elif path == f"/api/models/{repo}/commit/main":
            self._commit([json.loads(line) for line in body.splitlines()])
        else:
            self._say(404, f"nothing at {path}")

    def _is_served(self) -> bool:
        """Whether the request is served; else it was answered with a refusal."""
        self.server.asked.append(f"{self.command} {self.path}")
        refusal = self.server.refuse(self.command, self.path)
        if refusal:
            self._say(*refusal)
        return refusal is None

    def _say(self, status: int, message: str, **more: str) -> None:
        self.answer(
            status, json.dumps({"error": message, "errors": [{"message": message}], **more}).encode(),
            {"Content-Type": "application/json", "X-Error-Message": message},
        )  # fmt: skip

    def _create(self, wanted: dict[str, Any]) -> None:
        url = {"url": f"{self.server.address}/{self.server.repo}"}
        if f"{wanted['organization']}/{wanted['name']}" != self.server.repo:
            self._say(403, "You don't have the rights to create a model under the namespace " + wanted["organization"])
        elif self.server.commits:
            self._say(409, "You already created this model repo", **url)
        else:
            self.server.commit("initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})
            self._json(url)

    def _validate(self, card: str) -> None:
        front = re.match(r"---\n(.*?)\n---\n", card, re.S)
        data = yaml.safe_load(front[1]) if front else None
        for model in (data or {}).get("model-index", []):
            if not model.get("name") or not all(result["metrics"] for result in model["results"]):
                self.answer(400, json.dumps({"errors": [{"message": "bad model-index"}], "warnings": []}).encode())
                return
        self._json({"errors": [], "warnings": [] if data else [{"message": "empty or missing yaml metadata"}]})

    def _upload_mode(self, file: dict[str, Any]) -> dict[str, Any]:
        mode = "lfs" if file["path"].endswith(LARGE) else "regular"
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": file["path"] in self.server.ignored}

    def _upload(self, one: dict[str, Any]) -> dict[str, Any]:
        """What the client is to do with a large file: nothing when the hub has it."""
        here, asked = self.server.address, {"oid": one["oid"], "size": one["size"]}
        if one["oid"] in self.server.large:
            return asked
        actions = {"upload": {"href": f"{here}/large/{one['oid']}"}, "verify": {"href": f"{here}/large/verify"}}
        return {**asked, "actions": actions}

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        head, files = lines[0]["value"], dict(self.server.files)
        if head.get("parentCommit") not in (None, self.server.head):
            self._say(412, "A commit has happened since. Please refresh and try again.")
            return
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile" and value["oid"] in self.server.large:
                files[value["path"]] = self.server.large[value["oid"]]
            elif line["key"] == "deletedFile" and value["path"] in files:
                del files[value["path"]]
            else:
                self._say(422, f"{line['key']} of {value['path']} can't be committed")
                return
        self.server.commit(head["summary"], files)
        where = f"{self.server.address}/{self.server.repo}/commit/{self.server.head}"
        self._json({"success": True, "commitOid": self.server.head, "commitUrl": where, "hookOutput": ""})


@contextlib.contextmanager
def serve_uploads(repo: str) -> Iterator[UploadHub]:
    """A hub where the owner of TOKEN may create the model repository `repo`."""
    hub = UploadHub(("127.0.0.1", 0), UploadHandler)
    hub.repo, hub.kind, hub.files, hub.large = repo, "models", {}, {}
    hub.commits, hub.asked, hub.refuse = [], [], lambda method, path: None
    hub.daemon_threads = True
    with serving(hub):
        yield hub
