"""Turn errors of huggingface_hub into ours, and look at the sizes of a repository's files before a download."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

from trnflow.tasks.errors import ConfigError, DataError, MachineError, ModelError
from trnflow.tasks.sources.hub_client import bounded_answers, expect_files, is_name
from trnflow.tasks.system.disk import KEPT_FREE
from trnflow.tasks.system.redaction import scrub

Answer = TypeVar("Answer")

TRIES = 3
"""How often a hub is asked that does not answer in time."""


def asked(ask: Callable[[float], Answer]) -> Answer:
    """Return what `ask` returns for the seconds that the hub may take (HF_HUB_ETAG_TIMEOUT). It is called again if the
    hub took longer."""
    from huggingface_hub import constants

    for _ in range(TRIES - 1):
        try:
            return ask(constants.HF_HUB_ETAG_TIMEOUT)
        except Exception as error:
            if not any(isinstance(cause, _http().TimeoutException) for cause in _causes(error)):
                raise
    return ask(constants.HF_HUB_ETAG_TIMEOUT)


def described(ask: Callable[[float], Any]) -> Any:
    """Return what the hub says of a repository. Raises as `asked`, and ValueError for what no hub says."""
    try:
        info = asked(ask)
        sizes = [file.size for file in info.siblings or ()]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its answer has another shape: {type(error).__name__} {error}") from error
    if not is_name(info.sha) or not all(size is None or (isinstance(size, int) and size >= 0) for size in sizes):
        raise ValueError("its answer has a commit or sizes that can't be")
    return info


def is_out_of_reach(error: BaseException) -> bool:
    """Return whether an error's cause is that the hub's client is offline, or got no connection."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    none = (OfflineModeIsEnabled, _http().ConnectError, _http().ConnectTimeout)
    causes = _causes(error)
    # a certificate that is refused is shown by a server that is there
    return any(isinstance(cause, none) for cause in causes) and not any(isinstance(c, ssl.SSLError) for c in causes)


def unreachable() -> tuple[type[BaseException], ...]:
    """Return the types of what the hub's client raises if it got no answer of a hub."""
    from huggingface_hub.errors import HfHubHTTPError

    # OSError and the HTTP library's errors; the others of an address, or an answer, that is no hub's, such as a proxy's page
    return (*HfHubHTTPError.__bases__, _http().InvalidURL, ValueError)


def _http() -> Any:
    """Return the HTTP library of huggingface_hub, whose errors it raises."""
    from huggingface_hub.errors import HfHubHTTPError

    return import_module(HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error, its cause, the cause of that, and so on."""
    causes: list[BaseException] = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


@contextmanager
def hub_errors(section: Literal["data", "model"], repo: str, revision: str | None) -> Iterator[None]:
    """Raise our errors in place of the hub client's: ConfigError for an unknown revision; DataError (section "data") or
    ModelError ("model") for a repository that is gated, unknown or can't be reached, or whose hub answers otherwise."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    what, kind = ("dataset", DataError) if section == "data" else ("model", ModelError)
    try:
        with bounded_answers():
            yield
    except GatedRepoError as error:
        raise kind(
            f"{section}.source: the {what} {repo} is gated and no token that may read it was found",
            f"accept its licence on the hub, then `hf auth login` or set HF_TOKEN (or {section}.source to a folder): {repo}",
        ) from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"{section}.revision: the {what} {repo} has no revision {revision}", "change it") from error
    except RepositoryNotFoundError as error:
        raise kind(
            f"{section}.source: {repo} is neither a file or folder here nor a {what} on the hub",
            f"check the name; a private {what} also needs HF_TOKEN",
        ) from error
    except unreachable() as error:
        why = scrub(" ".join(str(error).split()))[:200] or type(error).__name__
        raise kind(
            f"{section}.source: {repo} is no file or folder here, and the hub could not be asked: {why}",
            f"check the network, or point {section}.source at a local file or folder",
        ) from error


def files_due(
    section: Literal["data", "model"], repo: str, commit: str, wanted: Callable[[str], bool]
) -> dict[str, int]:
    """Return {path: bytes} of the files that a download would fetch. Costs a request, unless the hub's cache has the list.

    wanted: whether the file of a path is downloaded. Where the hub can't be asked {} is returned: the download says so.
    Raises MachineError if the disk of the cache has no room for them.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    kind, cache = "dataset" if section == "data" else "model", Path(constants.HF_HUB_CACHE)
    # of all commits: a file that did not change is linked, not downloaded
    blobs = cache / repo_folder_name(repo_id=repo, repo_type=kind) / "blobs"
    due = {
        path: size
        for path, (size, blob) in _listed(repo, commit, kind).items()
        if wanted(path) and not (blob and (blobs / blob).exists())
    }
    expect_files(*due.values())
    missing = sum(due.values())
    free = shutil.disk_usage(next(place for place in (cache, *cache.parents) if place.exists())).free
    if due and free < missing + KEPT_FREE:
        raise MachineError(
            f"{section}.source: {missing / 1e9:,.1f} GB of {repo} are to be downloaded, and the disk of {cache} has "
            f"{free / 1e9:,.1f} GB free",
            f"free some space, or set HF_HOME to a folder on another disk; {section}.source may name a folder, too",
        )
    return due


def _listed(repo: str, commit: str, kind: str) -> dict[str, tuple[int, str | None]]:
    """Return {path: its bytes, and its name among the cache's blobs}."""
    from huggingface_hub import HfApi, constants, get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return {file.path: _of(file) for file in get_cached_repo_tree(repo, repo_type=kind, revision=commit)}
    except CachedRepoTreeNotFoundError:
        pass
    try:
        # `list_repo_tree` asks for half a minute where nobody answers
        info = described(
            lambda _: HfApi().repo_info(
                repo, repo_type=kind, revision=commit, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
        )
    except unreachable():
        return {}
    return {file.rfilename: _of(file) for file in info.siblings or ()}


def _of(file: Any) -> tuple[int, str | None]:
    return file.size or 0, file.lfs.sha256 if file.lfs else file.blob_id
