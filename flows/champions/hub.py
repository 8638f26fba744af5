"""Publish an artifact as a model repository on a hub, by the hub's own client.

The same command resumes an interrupted upload. The token is the client's (HF_TOKEN, or `hf auth login`), the hub
HF_ENDPOINT. Xet is switched off: uploads through it were never tested.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.flows.champions.destinations import CARD, LOADABLE, Report
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.system.redaction import add_secret, scrub

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.hf_api import RepoFile

SCHEME = "hf://"
OWN = frozenset({".gitattributes"})
"""Files that the hub puts into a repository."""

Listing = dict[str, "RepoFile"]


def repository_of(to: str) -> str:
    """Return the `USER/NAME` in `hf://USER/NAME`. Raises ConfigError for another form. The hub is not asked."""
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
    """Upload and commit files to a model repository, which is made if it is missing; return how many were uploaded.

    Args:
        names: Paths below `folder`; the file that makes the folder loadable is the last.
        to: `hf://USER/NAME`.
        summary: The commits' message.
        replace: Replace another model in the repository, in one commit.
        report: Called with a sentence for each upload.

    Raises:
        ConfigError: `to` is no repository's name, or the repository holds other files.
        StoreError: The hub refuses, fails or can't be reached, or its files differ from those that were sent.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import get_token

    repo, api = repository_of(to), HfApi()
    add_secret(get_token() or "")
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
    """Return the repository's files that are not of this model."""
    other = _others(there, names)
    if LOADABLE & there.keys():
        other += [name for name in missing if name in there and name != CARD]
    return other


def _others(there: Listing, names: list[str]) -> list[str]:
    """Return the repository's files that have other names than this model's."""
    return sorted(set(there) - set(names) - OWN - {CARD})


def _commits(names: list[str], missing: list[str], there: Listing) -> list[tuple[list[str], list[str]]]:
    """Return (files to add, files to delete) of each commit."""
    loadable, stale = names[-1], _others(there, names)
    if LOADABLE & there.keys():
        return [(missing, stale)]
    return [([name for name in missing if name != loadable], stale), ([loadable], [])]


def _upload(
    api: Any, repo: str, head: str, added: dict[str, CommitOperationAdd],
    commits: list[tuple[list[str], list[str]]], summary: str, report: Report,
) -> bool:  # fmt: skip
    """Upload large files, then commit; return whether there was something to commit."""
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
            # the hub refuses a commit whose parent is no longer the newest
            head = api.create_commit(repo, operations, commit_message=summary, parent_commit=head).oid
    return head != before


def _listed(api: Any, repo: str) -> tuple[str, Listing]:
    """Return (newest commit, files) of the repository."""
    head = str(api.repo_info(repo).sha)
    files = api.list_repo_tree(repo, recursive=True, revision=head)
    return head, {file.path: file for file in files if hasattr(file, "blob_id")}


def _is_there(remote: Any, file: Path, digest: str = "") -> bool:
    """Return whether the repository's file has the bytes of `file`. digest: its SHA-256, if known."""
    if remote is None or remote.size != file.stat().st_size:
        return False
    # the hub knows large files by SHA-256, others by git's digest
    if remote.lfs:
        return bool(remote.lfs.sha256 == (digest or sha256_file(file).removeprefix("sha256:")))
    data = file.read_bytes()
    return bool(hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == remote.blob_id)


def _check(api: Any, to: str, repo: str, folder: Path, added: dict[str, CommitOperationAdd]) -> None:
    """Ask the hub what it made of the files that were sent. Raises StoreError."""
    there = _listed(api, repo)[1]
    for name, operation in added.items():
        if not _is_there(there.get(name), folder / name, operation.upload_info.sha256.hex()):
            raise StoreError(
                f"{to} does not hold {name} as it was sent",
                "look at the repository (its .gitignore?), then publish again",
            )


@contextmanager
def _client_options() -> Iterator[None]:
    """Let the client upload by LFS, and draw progress bars on a terminal alone."""
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
    """Raise one StoreError in place of the client's errors."""
    from huggingface_hub.errors import HfHubHTTPError

    known = (OSError, ValueError, RuntimeError, *HfHubHTTPError.__bases__)
    try:
        yield
    except known as error:
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error  # of an upload's thread
        message = " ".join(str(getattr(cause, "server_message", None) or cause).split()) or type(cause).__name__
        raise StoreError(f"publishing to {to} failed: {scrub(message)[:200]}", _fix(cause, to)) from error


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
