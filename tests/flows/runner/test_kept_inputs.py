"""A stage that keeps an input makes it again only when what that is made of changes: not when its own code does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.runner.mill import Mill
from tests.helpers.runs import plan_graph
from trnflow.tasks.errors import CodeError, ProcessFailed
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.verify import verify

PROJECT = Path(__file__).resolve().parents[3]
KINDS = {"judge": "judged", "judge.shard": "judged.shard"}


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mill]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Mill(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "mill"]:
        del sys.modules[name]


def started(mill: Mill, run: str, mark: int, *, seconds: float = 0.0) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(mill.folder), str(PROJECT)])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.flows.runner.mill", str(mill.folder), run, str(mark)],
        env={**os.environ, "PYTHONPATH": path, "SECONDS_TAKEN": str(seconds)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_scoring_changes_and_nothing_is_predicted_again(mill: Mill) -> None:
    first = mill.run()
    assert first.metrics == {"passed": 2} and mill.done() == ["predicts", "scores"]
    mill.edit("scoring", "row >= ", "row > ")
    plan = plan_graph(mill.graph(), mill.store()).steps["judge"]
    assert plan.action == "run" and plan.why == "code of mill.scoring changed; its predictions are kept"
    second = mill.run()
    assert second.metrics == {"passed": 1} and second.figures["latency"] == first.figures["latency"]
    assert mill.run(pass_mark=0).metrics == {"passed": 4}, "a setting of scoring"
    assert mill.done() == ["predicts", "scores", "scores", "scores"]
    assert len(mill.kept()) == 1


def test_what_predicting_depends_on_changes_and_all_runs(mill: Mill) -> None:
    mill.run()
    mill.edit("predicting", "range(config.rows)", "range(1, config.rows + 1)")
    assert "mill.predicting changed" in plan_graph(mill.graph(), mill.store()).steps["judge"].why
    assert mill.run().metrics == {"passed": 3}
    assert mill.run(rows=9).metrics == {"passed": 7}
    assert mill.done() == ["predicts", "scores"] * 3
    mill.run(rows=9, force=True)
    assert mill.done() == ["predicts", "scores"] * 4, "a forced stage keeps nothing"


def test_what_is_predicted_is_proved_against_its_own_key(mill: Mill) -> None:
    mill.edit(
        "predicting", "    time.sleep", "    __import__('importlib').import_module('mill.scoring')\n    time.sleep"
    )
    with pytest.raises(CodeError, match=r"used mill/scoring\.py"):
        mill.run()
    assert mill.kept() == [] and mill.store().records("judge") == []


def test_scoring_fails_and_the_predictions_stay_and_are_replaced_when_damaged(mill: Mill) -> None:
    mill.edit("scoring", "    return {", "    os._exit(9)\n    return {")
    mill.edit("scoring", "import time", "import os, time")
    with pytest.raises(ProcessFailed):
        mill.run()
    mill.edit("scoring", "    os._exit(9)\n", "")
    assert mill.run().metrics == {"passed": 2}
    assert mill.done() == ["predicts", "scores", "scores"]

    (record,) = mill.kept()
    (file,) = mill.store().artifact(record["artifact"]).files
    blob = mill.folder / "store" / blob_name(file.digest)
    blob.chmod(0o644)
    blob.write_text("9 9 9 9 9")
    assert mill.run(pass_mark=4).metrics == {"passed": 1}
    assert mill.done()[-2:] == ["predicts", "scores"]
    assert verify(mill.store().backend, kinds=KINDS).ok


def test_collecting_keeps_predictions_as_long_as_their_scores(mill: Mill) -> None:
    mill.run()
    collect(mill.store().backend, Policy(keep_last=1, grace=0.0), yes=True)
    mill.run(pass_mark=1)
    assert mill.done() == ["predicts", "scores", "scores"]


@pytest.mark.slow
def test_killed_between_the_two_it_goes_on_with_scoring(mill: Mill) -> None:
    mill.edit("scoring", "    rows = ", "    time.sleep(30)\n    rows = ")
    run = started(mill, "killed", 3)
    while mill.done() != ["predicts", "scores"]:
        assert run.poll() is None
        time.sleep(0.02)
    run.kill()
    run.wait()
    mill.edit("scoring", "    time.sleep(30)\n", "")
    assert mill.run("after").metrics == {"passed": 2}
    assert mill.done() == ["predicts", "scores", "scores"]
    assert verify(mill.store().backend, kinds=KINDS).ok


@pytest.mark.slow
def test_of_two_runs_that_score_differently_one_predicts(mill: Mill) -> None:
    runs = [started(mill, f"run{mark}", mark, seconds=2.0) for mark in (1, 4)]
    assert [run.communicate()[0].strip() for run in runs] == ["{'passed': 4}", "{'passed': 1}"]
    assert sorted(mill.done()) == ["predicts", "scores", "scores"]
    assert len(mill.kept()) == 1 and len(mill.store().records("judge")) == 2
