"""Bound what a hub's server may answer: huggingface_hub writes all that comes, into the file that a header names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from trnflow.tasks.system.disk import check_room

ANSWER = 64 << 20
"""Most bytes of an answer that is no file: a list of 100,000 files has 35 MB."""
SLACK = 16 << 20
"""Bytes that a file may have beyond the largest one that is due."""
LOOK = 64 << 20
"""Bytes between two looks at the free disk."""
_NAME = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f]{1,255}")
_NAMES = ("etag", "x-linked-etag", "x-repo-commit")
"""Headers of a file's description (HEAD) that name a file or folder in the client's cache; those of lists may be any text."""


class _Open:
    """How many `bounded_answers` are open, and the bytes of the largest file that they expect."""

    count = 0
    largest: int | None = None


def is_name(text: Any) -> bool:
    """Return whether what a hub sent can be the name of a file."""
    return isinstance(text, str) and bool(_NAME.fullmatch(text))


def expect_files(*sizes: int) -> None:
    """Expect files of these bytes at most until `bounded_answers` ends."""
    if sizes and _Open.count:
        _Open.largest = max(_Open.largest or 0, *sizes)


@contextmanager
def bounded_answers() -> Iterator[None]:
    """Context in which the hub's client raises OSError for too many bytes or a header that is no file's name, and MachineError
    before the disk is full."""
    http = import_module("huggingface_hub.utils._http")
    made = getattr(http, "_GLOBAL_CLIENT_FACTORY", None)  # older versions have none
    if made is not None and not hasattr(made, "ours"):
        http.set_client_factory(_factory(made))  # `made` may be that of a program that imports trnflow
    _Open.count += 1
    try:
        yield
    finally:
        _Open.count -= 1
        if not _Open.count:
            _Open.largest = None


def _factory(before: Any) -> Any:
    """Return a factory that adds our hooks to another one's clients."""

    def made() -> Any:
        client = before()
        client.event_hooks["request"].append(_ask_plainly)
        client.event_hooks["response"].append(_check)
        return client

    made.ours = True  # type: ignore[attr-defined]
    return made


def _ask_plainly(request: Any) -> None:
    if _Open.count:
        request.headers["Accept-Encoding"] = "identity"  # 60 MB of gzip may be 60 GB


def _check(response: Any) -> None:
    if not _Open.count:
        return
    headers = response.headers
    for name in _NAMES if response.request.method == "HEAD" else ():
        if not is_name(headers.get(name, "-").removeprefix("W/").strip('"')):
            raise OSError(f"its header {name} is no name of a file")
    if headers.get("content-encoding", "identity") != "identity":
        raise OSError("its answer is compressed, and was not asked to be")
    response.stream = _bounded_stream()(response.stream, is_file=not response.request.url.path.startswith("/api/"))


@cache
def _bounded_stream() -> Any:
    """Return a class of the client's HTTP library: a stream that raises OSError for too many bytes."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    http = import_module(HfHubHTTPError.__bases__[0].__module__.partition(".")[0])
    cache = Path(constants.HF_HUB_CACHE)

    class Bounded(http.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, stream: Any, *, is_file: bool) -> None:
            self._stream, self._is_file = stream, is_file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def __iter__(self) -> Iterator[bytes]:
            most, count, looked = ANSWER, 0, 0
            if self._is_file:
                most = sys.maxsize if _Open.largest is None else _Open.largest + SLACK
            for chunk in self._stream:
                count += len(chunk)
                if count > most:
                    raise OSError(f"it sends more than the {most >> 20} MiB that it may")
                if count > looked + LOOK:
                    looked = count
                    check_room(next(place for place in (cache, *cache.parents) if place.exists()))
                yield chunk

        def close(self) -> None:
            self._stream.close()

    return Bounded
