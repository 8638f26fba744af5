"""A home that somebody deletes while a stage runs: one clear line, whatever failed first."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests.flows.cli.waiting_stage import WaitConfig, wait_for
from tests.helpers.command_line import opened
from tests.helpers.runs import context
from tests.helpers.waiting import wait_for as until
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import run
from trnflow.tasks.errors import HomeRemoved


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_a_home_that_is_removed_in_mid_run_is_one_clear_line(tmp_path: Path, again: bool) -> None:
    _, store = opened(tmp_path)
    running = context(store)

    def remove() -> None:
        try:
            until(lambda: [*store.home.glob("runs/*/*-wait_for-*.log")])
            while store.home.exists():  # the run writes meanwhile
                shutil.rmtree(store.home, ignore_errors=True)
            if again:
                store.home.mkdir(exist_ok=True)
        finally:
            (tmp_path / "go").touch()

    remover = threading.Thread(target=remove)
    remover.start()
    result = run(Graph((Node(wait_for, WaitConfig(path=str(tmp_path / "go")), {}),)), running, Options())
    remover.join()
    assert isinstance(result.error, HomeRemoved)
    assert str(result.error).startswith(
        f"the home {store.home} was removed while this command used it. Fix: run it again"
    )
