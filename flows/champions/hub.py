"""Publish a model, an adapter or an export as a model repository on a Hugging Face hub, by the hub's own client.

Large files are uploaded first. They are not visible before a commit names them. A large file that the hub has already
is not uploaded again, so the same command resumes an upload that was interrupted. The file that makes the repository
loadable (`config.json`, for example) has a commit of its own, the last one. If the repository holds another model,
publishing is refused or, with `replace`, one commit replaces that model: a program that loads the repository gets the
old model or the new one, never a mixture, and the repository's history keeps the old one.

The token is the one that the client finds (HF_TOKEN, or `hf auth login`), the hub is HF_ENDPOINT. Xet, the hub's newer way to
store large files, is switched off; uploads through it were never tested.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trnflow.flows.champions.destinations import CARD, LOADABLE, Report
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.system.redaction import know, scrub

SCHEME = "hf://"
OWN = frozenset({".gitattributes"})
"""Files that the hub itself puts into a repository."""

Listing = dict[str, Any]
"""The files of a repository: {path: `RepoFile` of the hub's client}."""


def repository_of(to: str) -> str:
    """Return the `USER/NAME` in a hub address `hf://USER/NAME`. ConfigError when it is no valid name of a model
    repository. The hub is not asked."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    name = to.removeprefix(SCHEME).rstrip("/")
    try:
        validate_repo_id(name)
        if name.count("/") != 1:
            raise HFValidationError(name)
    except HFValidationError as error:
        raise ConfigError(f"{to} is no name of a model repository", "name it as hf://USER/NAME") from error
    return name


def to_hub(folder: Path, names: list[str], to: str, summary: str, replace: bool, report: Report) -> int:
    """Upload files to a model repository of the Hugging Face hub, which is made if it is missing, and commit them
    there. Return the number of the uploaded files; files that the repository has already are not uploaded.

    Args:
        folder: Where the files are.
        names: Their paths below `folder`; the file that makes the folder loadable is the last.
        to: `hf://USER/NAME`.
        summary: The message of the commits.
        replace: Whether another model in the repository is replaced; if not, another model is an error.
        report: Called with a sentence for each upload.

    Raises:
        ConfigError: `to` is no repository's name, or the repository holds other files and `replace` is not set.
        StoreError: The hub refuses, fails or can't be reached, or its files differ from those that were sent. In the
            last case the commits stay, else the repository still loads what it loaded before.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import get_token

    repo, api = repository_of(to), HfApi()
    know(get_token() or "")
    with _hub_errors(to), _client_options():
        api.create_repo(repo, exist_ok=True)
        head, there = _listed(api, repo)
        missing = [name for name in names if not _is_there(there.get(name), folder / name)]
        foreign = _foreign(there, names, missing)
        if foreign and not replace:
            raise ConfigError(
                f"{to} holds {foreign[0]}, which is not of this model",
                "name a new repository, or replace what it holds by --replace (its history keeps it)",
            )
        added = {name: CommitOperationAdd(name, str(folder / name)) for name in missing}
        if _upload(api, repo, head, added, _commits(names, missing, there), summary, report):
            _check(api, to, repo, folder, added)
    return len(missing)


def _foreign(there: Listing, names: list[str], missing: list[str]) -> list[str]:
    """The files of the repository that are not of this model. Its card may be another, and while the repository does not load,
    a file of the same name too."""
    other = _others(there, names)
    if LOADABLE & there.keys():
        other += [name for name in missing if name in there and name != CARD]
    return other


def _others(there: Listing, names: list[str]) -> list[str]:
    """The files of the repository that have other names than this model's."""
    return sorted(set(there) - set(names) - OWN - {CARD})


def _commits(names: list[str], missing: list[str], there: Listing) -> list[tuple[list[str], list[str]]]:
    """What is to be committed, as (files to add, files to delete) of each commit."""
    loadable, stale = names[-1], _others(there, names)
    if LOADABLE & there.keys():
        return [(missing, stale)]
    return [([name for name in missing if name != loadable], stale), ([loadable], [])]


def _upload(
    api: Any, repo: str, head: str, added: dict[str, Any],
    commits: list[tuple[list[str], list[str]]], summary: str, report: Report,
) -> bool:  # fmt: skip
    """Upload large files, then commit; return whether there was something to commit. A commit whose parent is no longer the
    repository's newest is refused by the hub. added: path -> the client's CommitOperationAdd."""
    from huggingface_hub import CommitOperationDelete

    before = head
    for name, operation in added.items():
        report(f"uploading {name}")
        api.preupload_lfs_files(repo, [operation], free_memory=False)
    for names, stale in commits:
        operations = [
            *(added[name] for name in names), *(CommitOperationDelete(name, is_folder=False) for name in stale),
        ]  # fmt: skip
        if operations:
            report(f"committing {len(operations)} files")
            head = api.create_commit(repo, operations, commit_message=summary, parent_commit=head).oid
    return head != before


def _listed(api: Any, repo: str) -> tuple[str, Listing]:
    """The newest commit of the repository, and its files."""
    head = str(api.repo_info(repo).sha)
    files = api.list_repo_tree(repo, recursive=True, revision=head)
    return head, {file.path: file for file in files if hasattr(file, "blob_id")}


def _is_there(listed: Any, file: Path, digest: str = "") -> bool:
    """Whether the repository's file has the bytes of `file`. The hub knows large files by SHA-256, others by git's digest.

    digest: the SHA-256 of `file` in hexadecimal, if it is known."""
    if listed is None or listed.size != file.stat().st_size:
        return False
    if listed.lfs:
        return bool(listed.lfs.sha256 == (digest or sha256_file(file).removeprefix("sha256:")))
    data = file.read_bytes()
    return bool(hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == listed.blob_id)


def _check(api: Any, to: str, repo: str, folder: Path, added: dict[str, Any]) -> None:
    """Ask the hub what it made of the files that were sent. A hub leaves out those that the repository's .gitignore names."""
    there = _listed(api, repo)[1]
    for name, operation in added.items():
        if not _is_there(there.get(name), folder / name, operation.upload_info.sha256.hex()):
            raise StoreError(
                f"{to} does not hold {name} as it was sent",
                "look at the repository (its .gitignore?), then publish again",
            )


@contextmanager
def _client_options() -> Iterator[None]:
    """Context in which the client uploads large files by LFS, and shows its progress bars on a terminal alone."""
    from huggingface_hub import constants, utils

    hidden = not sys.stderr.isatty() and not utils.are_progress_bars_disabled()
    before, constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_XET, True
    if hidden:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = before
        if hidden:
            utils.enable_progress_bars()


@contextmanager
def _hub_errors(to: str) -> Iterator[None]:
    """Context that turns errors of the hub's client into one StoreError that says what the user can do."""
    from huggingface_hub.errors import HfHubHTTPError

    known = (OSError, ValueError, RuntimeError, *HfHubHTTPError.__bases__)
    try:
        yield
    except known as error:
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error  # of an upload's thread
        said = " ".join(str(getattr(cause, "server_message", None) or cause).split()) or type(cause).__name__
        raise StoreError(f"publishing to {to} failed: {scrub(said)[:200]}", _fix(cause, to)) from error


def _fix(error: BaseException, to: str) -> str:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import get_token

    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    if status in (401, 403, 404) and not get_token():
        return "`hf auth login` or set HF_TOKEN: no token was found, and publishing needs one that may write"
    if status == 401:
        return "the hub does not know the token (HF_TOKEN, else that of `hf auth login`): make a new one that may write"
    if status in (402, 403, 404):
        return f"check the name, the quota, and that the token may write to {to.removeprefix(SCHEME)}"
    if status == 412:
        return "somebody else changed the repository: look at it, then run the same command again"
    if not status and isinstance(error, ValueError):
        return "change what the hub names, then run the same command again"
    return "check the network and HF_ENDPOINT; the same command goes on with what is uploaded"
