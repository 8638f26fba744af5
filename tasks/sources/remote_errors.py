"""Explain exceptions of remote file systems (fsspec, aiohttp, botocore, google-auth)."""

from __future__ import annotations

from collections.abc import Iterator

SCHEMA = 1

# {protocol: fix where no credentials were found}
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in the environment",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS in the environment",
}

# class names of botocore's and google-auth's errors: comparing names imports neither library
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound", "TokenRetrievalError",
        "UnauthorizedSSOTokenError", "SSOTokenLoadError", "DefaultCredentialsError",
    }
)  # fmt: skip


def credentials_fix(error: BaseException, url: str) -> str | None:
    """Return how to set credentials if `error` or a cause of it says that there are none, else None."""
    if not any(type(cause).__name__ in _NO_CREDENTIALS for cause in _chain(error)):
        return None
    protocol = url.partition("://")[0]
    return CREDENTIALS.get({"s3a": "s3", "gcs": "gs"}.get(protocol, protocol), f"set those of {protocol}://")


def explain_error(error: BaseException, url: str) -> tuple[str, str]:
    """Return (what happened, fix) for an exception while `url` was read. The texts may hold secrets."""
    message = " ".join(str(error).split()) or type(error).__name__
    if fix := credentials_fix(error, url):
        return f"no credentials were found ({message})", fix
    statuses = (getattr(link, "status", None) for link in _chain(error))  # of an aiohttp error HTTP's
    status = next((code for code in statuses if isinstance(code, int) and code >= 400), None)
    if status in (404, 410):
        return f"the server has no such file ({status})", "check the URL"
    if status in (401, 403):
        return f"the server refused access ({status})", "check the credentials in the URL, or whether it has expired"
    if status is not None:
        return f"the server failed ({status})", "try again later, or download the file and name its path"
    if isinstance(error, PermissionError):
        return f"access was refused: {message}", "check that the credentials in the environment may read it"
    *_, cause = _chain(error)
    if isinstance(error, FileNotFoundError) and cause is error:
        return "there is no such file", "check the URL"
    message = " ".join(str(cause).split()) or type(cause).__name__
    return f"can't be read: {message}", "check the URL, the network and the credentials in the environment"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause's cause, and so on."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
