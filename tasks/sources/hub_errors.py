"""Turn errors of huggingface_hub into ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from trnflow.tasks.errors import ConfigError, DataError, ModelError
from trnflow.tasks.system.redaction import scrub


@contextmanager
def hub_errors(section: Literal["data", "model"], repo: str, revision: str | None) -> Iterator[None]:
    """Raise our errors in place of the hub client's: ConfigError for an unknown revision; DataError (section "data") or
    ModelError ("model") for a repository that is gated, unknown or can't be reached."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    what, kind = ("dataset", DataError) if section == "data" else ("model", ModelError)
    unreachable = HfHubHTTPError.__bases__  # OSError and the HTTP library's error
    try:
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
    except unreachable as error:
        why = scrub(" ".join(str(error).split()))[:200] or type(error).__name__
        raise kind(
            f"{section}.source: {repo} is no file or folder here, and the hub could not be asked: {why}",
            f"check the network, or point {section}.source at a local file or folder",
        ) from error
