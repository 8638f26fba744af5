"""What `run --detach` runs here before it orders a job."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest

from trnflow.flows.cli import run_commands
from trnflow.flows.jobs import order as orders

STAGES = ("load_data", "pack_chunks", "train", "evaluate_model")


def test_of_forced_stages_those_of_the_job_are_not_forced_here(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = SimpleNamespace(
        elsewhere=None, stages=STAGES, deferred=(), until=lambda stage: STAGES[:2], stage=lambda name: None
    )
    context = SimpleNamespace(recipe=None)
    begun: list[tuple[str, list[str]]] = []

    def run(options: Namespace) -> tuple[int, bool]:
        begun.append((options.until, options.force))
        return 1, False

    monkeypatch.setattr(run_commands, "open_context", lambda *given, **more: context)
    monkeypatch.setattr(run_commands, "finetune", lambda recipe: graph)
    monkeypatch.setattr(run_commands, "_run", run)
    monkeypatch.setattr(orders, "carried_for", lambda context: object())
    options = Namespace(until=None, force=["load_data", "train"], recipe="a", overrides=[], offline=True, json=False)
    assert run_commands.order(options) == 1
    assert begun == [("pack_chunks", ["load_data"])]
