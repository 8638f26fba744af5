"""Which files a publication sends to a hub, in which commits, and what it believes of the answers; `test_publish_hub.py` has a
hub."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.flows.champions.hub import _check, _commits, _fix, _foreign, _is_there, _upload, repository_of
from trnflow.tasks.errors import ConfigError, StoreError

NAMES = ["README.md", "model.safetensors", "tokenizer.json", "config.json"]


def remote(data: bytes, *, lfs: bool = False, blob: str = "") -> Any:
    sha256 = hashlib.sha256(data).hexdigest()
    return SimpleNamespace(size=len(data), blob_id=blob, lfs=SimpleNamespace(sha256=sha256) if lfs else None)


def test_a_file_is_there_if_the_hub_has_its_bytes(tmp_path: Path) -> None:
    """Git's digest of "hello" and a line break is ce013625..., as `git hash-object` prints it."""
    (file := tmp_path / "a").write_bytes(b"hello\n")
    there = remote(b"hello\n", blob="ce013625030ba8dba906f756967f9e9ca394464a")
    assert _is_there(there, file) and not _is_there(None, file)
    assert not _is_there(remote(b"hallo\n", blob="0" * 40), file)
    assert _is_there(remote(b"hello\n", lfs=True), file) and not _is_there(remote(b"hallo\n", lfs=True), file)
    there.size = 7
    assert not _is_there(there, file)
    sent = hashlib.sha256(b"hallo\n").hexdigest()  # what was sent counts, not what lies there by now
    assert _is_there(remote(b"hallo\n", lfs=True), file, sent) and not _is_there(
        remote(b"hello\n", lfs=True), file, sent
    )


def test_a_new_repository_loads_only_after_its_last_commit_and_a_model_is_replaced_in_one() -> None:
    there: dict[str, Any] = {".gitattributes": 1, "README.md": 1}
    assert _commits(NAMES, NAMES, there) == [(NAMES[:-1], []), (["config.json"], [])]
    missing = ["tokenizer.json", "config.json"]
    assert _commits(NAMES, missing, {**there, "model.safetensors": 1}) == [
        (["tokenizer.json"], []),
        (["config.json"], []),
    ]
    other = {**there, "config.json": 1, "pytorch_model.bin": 1}
    assert _commits(NAMES, NAMES, other) == [(NAMES, ["pytorch_model.bin"])]


def test_files_of_another_model_are_foreign_and_those_of_a_publication_that_was_interrupted_are_not() -> None:
    there: dict[str, Any] = {".gitattributes": 1, "README.md": 1, "model.safetensors": 1}
    assert _foreign(there, NAMES, ["model.safetensors", "config.json"]) == []
    assert _foreign({**there, "notes.txt": 1}, NAMES, []) == ["notes.txt"]
    assert _foreign({**there, "config.json": 1}, NAMES, ["README.md"]) == [], "a card may differ"
    assert _foreign({**there, "config.json": 1}, NAMES, ["README.md", "model.safetensors"]) == ["model.safetensors"]


def test_each_commit_follows_the_one_before_and_large_files_go_first() -> None:
    did: list[Any] = []

    def create_commit(repo: str, operations: Any, commit_message: str, parent_commit: str) -> Any:
        did.append(([each if isinstance(each, str) else f"-{each.path_in_repo}" for each in operations], parent_commit))
        return SimpleNamespace(oid=f"c{len(did)}")

    api = SimpleNamespace(
        preupload_lfs_files=lambda repo, operations, free_memory: did.append(operations), create_commit=create_commit
    )
    added: Any = {"a": "a", "config.json": "config.json"}
    commits = [(["a"], ["old"]), ([], []), (["config.json"], [])]
    assert _upload(api, "me/mine", "head", added, commits, "said", lambda line: None)
    assert did == [["a"], ["config.json"], (["a", "-old"], "head"), (["config.json"], "c3")]
    assert not _upload(api, "me/mine", "head", {}, [([], [])], "said", lambda line: None)


def test_a_file_that_the_hub_holds_otherwise_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    listed: list[Any] = []
    api = SimpleNamespace(
        repo_info=lambda repo: SimpleNamespace(sha="c"), list_repo_tree=lambda repo, recursive, revision: listed
    )
    added: Any = {"config.json": SimpleNamespace(upload_info=SimpleNamespace(sha256=hashlib.sha256(b"{}").digest()))}
    with pytest.raises(StoreError, match="hf://me/mine does not hold config.json as it was sent"):
        _check(api, "hf://me/mine", "me/mine", tmp_path, added)
    listed.append(SimpleNamespace(path="config.json", **vars(remote(b"{}", lfs=True))))
    (tmp_path / "config.json").write_bytes(b"[]")  # what was sent counts
    _check(api, "hf://me/mine", "me/mine", tmp_path, added)


def test_a_repository_has_an_owner_and_a_name() -> None:
    assert repository_of("hf://me/mine/") == "me/mine"
    for wrong in ("hf://mine", "hf://me/mine/more", "hf://me/-mine", "hf://"):
        with pytest.raises(ConfigError, match="is no name of a model repository"):
            repository_of(wrong)


@pytest.mark.parametrize(
    ("status", "token", "said"),
    [
        (401, "", "no token was found"), (404, "", "no token was found"), (401, "hf_x", "does not know the token"),
        (403, "hf_x", "that the token may write to me/mine"), (412, "hf_x", "somebody else changed the repository"),
        (500, "", "check the network"),
    ],
)  # fmt: skip
def test_a_hub_that_refuses_is_told_with_what_helps(
    status: int, token: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx
    from huggingface_hub.errors import HfHubHTTPError

    monkeypatch.setattr("huggingface_hub.utils.get_token", lambda: token or None)
    answer = httpx.Response(status, request=httpx.Request("POST", "https://hub"))
    assert said in _fix(HfHubHTTPError("refused", response=answer), "hf://me/mine")
