"""What a test leaves changed in its process fails it: environment variables, the working directory, handlers of signals.

What a fixture of a module sets may stay until the file ends; variables of STAYS may stay for good. A change that fails a test is
taken back, so that it fails no other.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

State = dict[str, object]
"""Of the process: values of environment variables, "working directory", and handlers by the names of their signals."""

STAYS = {
    "PYTEST_CURRENT_TEST": "pytest",
    "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_ENDPOINT_URL AWS_DEFAULT_REGION": "the S3 server, which starts once",
    "GRPC_VERBOSITY PJRT_DEVICE PJRT_DYNAMIC_PLUGINS TF_CPP_MIN_LOG_LEVEL TORCHINDUCTOR_CACHE_DIR XLA_FLAGS": "torch_xla",
    "SIGALRM": "pytest-timeout, which ends a test that hangs",
    "KMP_DUPLICATE_LIB_OK KMP_INIT_AT_FORK": "scikit-learn",
    "TOKENIZERS_PARALLELISM": "pipelines of transformers",
}
"""{variables: who sets them, once, until the session ends}"""
_STAYS = {name for names in STAYS for name in names.split()}

_MISSING = "missing"


class Leaks:
    """A plugin that compares the state of the process before and after each test."""

    def __init__(self) -> None:
        self._before = state()
        self._by_fixtures: list[tuple[str, object]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
        before = state()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._by_fixtures += changed(before, state())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self._by_fixtures.clear()
        left = [change for change in changed(self._before, state()) if change not in self._by_fixtures]
        if left:
            restore({name: self._before.get(name, _MISSING) for name, _ in left})
            raise AssertionError(f"left changed by {item.nodeid}, or a fixture of its: {dict(left)}")
        return result


def state() -> State:
    handlers = {number.name: signal.getsignal(number) for number in signal.Signals}
    found: State = {**os.environ, **handlers, "working directory": _folder()}
    return {name: value for name, value in found.items() if name not in _STAYS}


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "one that was removed"


def changed(before: State, after: State) -> list[tuple[str, object]]:
    """Return what differs, each with its value afterwards."""
    names = sorted(before.keys() | after.keys())
    return [
        (name, after.get(name, _MISSING)) for name in names if before.get(name, _MISSING) != after.get(name, _MISSING)
    ]


def restore(values: State) -> None:
    for name, value in values.items():
        if name == "working directory":
            os.chdir(str(value))
        elif name in signal.Signals.__members__:
            signal.signal(signal.Signals[name], value)  # type: ignore[arg-type]
        elif value is _MISSING:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)
