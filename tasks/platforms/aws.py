"""Ask Amazon's services, with errors in one line, and check a request by the service's own model before it is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trnflow.tasks.errors import ConfigError, MachineError, MissingDependency

TRIES = 8
"""Of a request that is throttled, or that nobody answers, with growing pauses."""
EXPIRED = frozenset({
    "ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId",
    "SignatureDoesNotMatch", "InvalidSignatureException", "AuthFailure", "IncompleteSignature", "RequestExpired", "400",
})  # fmt: skip
"""Codes of credentials that are wrong or expired; an answer to HEAD has its number alone."""
FORBIDDEN = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"})
THROTTLED = frozenset({"ThrottlingException", "Throttling", "RequestLimitExceeded", "TooManyRequestsException"})


class AwsRefusal(ConfigError):
    """A request that a service refused.

    Attributes:
        code: AWS's own, such as `ValidationException`.
    """

    code: str = ""


class Aws:
    """A client of one service, in the region and with the credentials of this process."""

    def __init__(self, service: str, name: str) -> None:
        """name: of the service, as errors show it. Raises ConfigError without a region, MissingDependency without boto3."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError:
            raise MissingDependency(
                f"{name} needs boto3, which is not installed", "pip install 'trnflow[s3]'"
            ) from None
        config = Config(
            retries={"mode": "standard", "total_max_attempts": TRIES + 1}, connect_timeout=10, read_timeout=60
        )
        self.name = name
        try:
            self._client = boto3.Session().client(service, config=config)
        except BotoCoreError as error:
            raise _local_error(error) from None

    @property
    def region(self) -> str:
        return str(self._client.meta.region_name)

    @property
    def model(self) -> Any:
        """botocore's description of the service."""
        return self._client.meta.service_model

    def ask(self, operation: str, **fields: Any) -> Mapping[str, Any]:
        """Return a service's answer. operation: as a method of boto3's client.

        Raises:
            AwsRefusal: The service does not do it.
            ConfigError: The credentials are missing or wrong.
            MachineError: It can't be reached, or limits requests.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: Mapping[str, Any] = getattr(self._client, operation)(**fields)
            return answer
        except ClientError as error:
            raise self._refusal(error.response.get("Error", {})) from None
        except BotoCoreError as error:
            raise _local_error(error) from None

    def pages(self, operation: str, **fields: Any) -> Iterator[Mapping[str, Any]]:
        """Yield a service's answers until there are no more. Raises as `ask`."""
        token: Mapping[str, Any] = {}
        while True:
            answer = self.ask(operation, **fields, **token)
            yield answer
            if not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def _refusal(self, error: Mapping[str, str]) -> ConfigError | MachineError:
        code, message = error.get("Code", ""), " ".join(error.get("Message", "").split())[:300]
        if code in EXPIRED:
            return ConfigError(
                f"AWS refused the credentials: {message or code}", "renew them: `aws configure` or `aws sso login`"
            )
        if code in THROTTLED:
            return MachineError(f"{self.name} limits requests: {message}", "try again later")
        fixes = {
            "ResourceLimitExceeded": "ask for a larger quota in AWS's Service Quotas, or take another instance with --on",
            "404": "check store.root",
            "NoSuchBucket": "check store.root",
        }
        fix = (
            "compare the permissions with services/aws/submitter.json, those of a job's role with role.json"
            if code in FORBIDDEN
            else fixes.get(code, "change it")
        )
        refusal = AwsRefusal(f"{self.name} refused it: {message or code} ({code})", fix)
        refusal.code = code
        return refusal


def _local_error(error: Exception) -> ConfigError | MachineError:
    from botocore import exceptions

    message = " ".join(str(error).split())[:300]
    if isinstance(error, exceptions.NoRegionError):
        return ConfigError("no AWS region is set", "export AWS_DEFAULT_REGION=us-east-1, or the region of your bucket")
    if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        return MachineError(f"AWS can't be reached: {message}", "check the network, and try again")
    return ConfigError(
        f"AWS's settings are not complete: {message}", "set credentials: `aws configure` or `aws sso login`"
    )


def request_faults(shape: Any, value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, why) of what is wrong in a request, of which botocore itself checks the types alone.

    shape: botocore's, of the request.
    """
    check = {"structure": _structure_faults, "list": _list_faults, "map": _map_faults}.get(
        shape.type_name, _plain_faults
    )
    yield from check(shape, value, path)


def _structure_faults(shape: Any, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, Mapping):
        yield path, f"{value!r} is no object with fields"
        return
    for name in shape.required_members:
        if name not in value:
            yield _below(path, name), "it is missing"
    for name, member in value.items():
        if name not in shape.members:
            yield _below(path, name), "AWS knows no such field"
        else:
            yield from request_faults(shape.members[name], member, _below(path, name))


def _list_faults(shape: Any, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list | tuple):
        yield path, f"{value!r} is no list"
        return
    yield from _range_faults(shape, len(value), path, "entries")
    for number, member in enumerate(value):
        yield from request_faults(shape.member, member, f"{path}[{number}]")


def _map_faults(shape: Any, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, Mapping):
        yield path, f"{value!r} is no object with names"
        return
    yield from _range_faults(shape, len(value), path, "entries")
    for name, member in value.items():
        yield from request_faults(shape.key, name, _below(path, str(name)))
        yield from request_faults(shape.value, member, _below(path, str(name)))


def _plain_faults(shape: Any, value: Any, path: str) -> Iterator[tuple[str, str]]:
    wanted: dict[str, Any] = {
        "string": str,
        "boolean": bool,
        "integer": int,
        "long": int,
        "float": int | float,
        "double": int | float,
    }
    kind: Any = wanted.get(shape.type_name, object)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        yield path, f"{value!r} is no {shape.type_name}"
    elif shape.type_name != "string":
        yield from _range_faults(shape, value, path, "")
    elif shape.enum and value not in shape.enum:
        yield path, f"{value!r} is none of {', '.join(shape.enum[:8])}{', ...' if len(shape.enum) > 8 else ''}"
    else:
        if not re.fullmatch(python_pattern(shape.metadata.get("pattern", ".*")), value, re.DOTALL):
            yield path, f"{value!r} does not match {shape.metadata['pattern']}"
        yield from _range_faults(shape, len(value), path, "characters")


def python_pattern(pattern: str) -> str:
    r"""Return a pattern of Java's for `re`: its classes, such as the letters `\p{L}`, are a little wider here."""
    return re.sub(
        r"\\p\{(\w)\w*\}", lambda found: {"L": r"\w", "N": r"\d", "Z": r"\s", "A": r"\w"}.get(found[1], r"\S"), pattern
    )


def _range_faults(shape: Any, size: float, path: str, unit: str) -> Iterator[tuple[str, str]]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    amount = f"{size:g} {unit}".strip()
    if least is not None and size < least:
        yield path, f"{amount}, and AWS wants {least} at least"
    if most is not None and size > most:
        yield path, f"{amount}, and AWS takes {most} at most"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
