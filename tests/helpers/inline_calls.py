"""Stages that run in the test's own process, for tests of plans, claims and stores: tests/launch has those of processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import from_json
from trnflow.tasks.launch import worker
from trnflow.tasks.launch.call import Call


def run_inline(call: Call, emit: Callable[[Meta], None]) -> Meta:
    """Do what `trnflow.tasks.launch.local.run_call` does, without a process. The files that the stage reads are not checked."""

    def report(event: Meta) -> None:
        if "saves" not in event:
            emit(json.loads(json.dumps(event)))

    on_term = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in call.environ.items():
            patch.setenv(name, value)
        # the check is of all modules of a process, and this one has loaded those of the tests
        document = worker._outcome(replace(call, permit=None), report)
    signal.signal(signal.SIGTERM, on_term)
    if "error" in document:
        raise from_json(document["error"])
    meta: Meta = document["meta"]
    return meta


@pytest.fixture
def inline_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("make", "parts.shards"):
        monkeypatch.setattr(f"trnflow.flows.runner.{module}.run_call", run_inline)
    # parents that no stage would be forked from: each imports torch for seconds
    monkeypatch.setattr("trnflow.flows.runner.run.start_warm_parents", lambda due, context: None)
