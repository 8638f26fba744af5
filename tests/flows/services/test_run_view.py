"""What Prefect is given of a plan and its progress. tests/flows/services/test_automations.py sees it in Prefect."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.flows.services.run_view.plan import PlanPage, RunName, plan_rows, plan_summary
from trnflow.flows.services.run_view.sweep import SweepPage
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.events import EventLog
from trnflow.tasks.events.event_types import PlannedStage
from trnflow.tasks.system import redaction


class Shown:
    """Stands for `Page`: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def show(self, create: Any, *, is_vital: bool = True, **arguments: Any) -> str:
        self.sent.append((create.__name__, arguments))
        return "id"


def planned(stage: str, action: str, seconds: float | None, why: str = "") -> PlannedStage:
    return {
        "stage": stage,
        "action": action,
        "why": why,
        "key": None,
        "artifact": None,
        "seconds": seconds,
        "bytes": None,
    }


def end(log: EventLog, *stages: PlannedStage) -> None:
    for one in stages:
        ended = {"action": "ran", "key": "k", "artifact": "d", "metrics": {}, "figures": {}, "facts": {}, "why": ""}
        log.write("stage_ended", stage=one["stage"], seconds=1.0, **ended)


PLAN = [
    planned("load_data", "hit", 5.0, "made by run 1"),
    planned("train", "run", 30.0, "params.learning_rate: 1 -> 2"),
    planned("consolidate", "maybe", 10.0, "waits for train"),
    planned("evaluate_model", "maybe", None, "waits for consolidate"),
]


def test_a_plan_says_what_runs_why_and_what_that_is_expected_to_cost() -> None:
    assert plan_rows(PLAN, 3600.0)[1] == {
        "stage": "train", "action": "run", "expected seconds": "30", "expected dollars": "30.00",
        "why": "params.learning_rate: 1 -> 2",
    }  # fmt: skip
    assert plan_rows(PLAN, 0.0)[0] == {
        "stage": "load_data",
        "action": "hit",
        "expected seconds": "",
        "why": "made by run 1",
    }
    assert plan_rows(PLAN, 0.0)[3]["expected seconds"] == "?"
    assert plan_summary(PLAN, 3600.0) == "Expected: 40 seconds, 40.00 dollars; unknown: evaluate_model"


def test_progress_is_the_share_of_the_expected_time() -> None:
    page = Shown()
    log = EventLog(PlanPage(page))  # type: ignore[arg-type]
    log.write("planned", stages=PLAN)
    assert [name for name, _ in page.sent] == ["create_table_artifact", "create_progress_artifact"]
    end(log, PLAN[0])
    assert log.state.share == 0.0
    emit = log.stage("train", key="k", attempt="a", settings={})
    emit({"progress": {"done": 1, "total": 2, "unit": "steps"}})
    assert log.state.share == pytest.approx(15 / 60)  # evaluate_model counts as much as the mean of the others
    end(log, *PLAN[1:])
    assert page.sent[-1] == ("update_progress_artifact", {"artifact_id": "id", "progress": 100.0})


def test_a_run_in_which_nothing_has_to_run_shows_no_plan() -> None:
    page = Shown()
    log = EventLog(PlanPage(page))  # type: ignore[arg-type]
    log.write("planned", stages=[planned("load_data", "hit", 5.0), planned("precompile", "skip", None)])
    end(log, PLAN[0])
    assert page.sent == []


def test_the_result_of_a_retrain_has_figures_checks_and_the_report() -> None:
    from trnflow.flows.services.run_view.artifacts import retrain_table  # imports Prefect

    document = {
        "why": "better", "champion": "sha256:aa", "challenger": "sha256:bb", "frozen": None, "report": "trnflow report R",
        "metrics": {"name": "accuracy", "champion": 0.8, "challenger": 0.91234, "difference": 0.11234,
                    "interval": [0.05, 0.17], "margin": 0.01},
        "checks": [{"what": "rows", "limit": 0.1, "value": 0.25, "result": "warned"},
                   {"what": "lengths", "column": "a", "limit": 0.1, "value": 0.2, "result": "warned"},
                   {"what": "lengths", "column": "b", "limit": 0.1, "value": 0.0, "result": "passed"},
                   {"what": "leakage", "limit": 0.01, "value": None, "result": "not applied"}],
    }  # fmt: skip
    assert retrain_table(document).splitlines() == [
        "better", "", "| result | |", "|---|---|", "| champion | `sha256:aa` |", "| challenger | `sha256:bb` |",
        "| accuracy of the challenger | 0.9123 |", "| accuracy of the champion before | 0.8 |",
        "| difference | 0.1123 [0.05, 0.17] |", "| margin | 0.01 |", "| check rows | warned: 0.25, limit 0.1 |",
        "| check lengths of a | warned: 0.2, limit 0.1 |", "| check lengths of b | passed: 0, limit 0.1 |",
        "| check leakage | not applied: ?, limit 0.01 |", "", "`trnflow report R` writes the page of the run.",
    ]  # fmt: skip


def test_a_sweep_has_one_table_whose_rows_are_replaced() -> None:
    page = Shown()
    shown = SweepPage(page)  # type: ignore[arg-type]
    trial = {"number": 0, "state": "completed", "value": 0.5, "settings": {"train.seed": 1}, "run": "r", "error": None}
    content = {"study": "s", "metric": "loss", "trials": [], "best": None, "winner": None}
    for trials in ([], [trial]):
        shown.show({**content, "trials": trials, "best": trials[-1] if trials else None})
    (created, first), (replaced, second) = page.sent
    assert (created, replaced, second["number"]) == ("create_table_artifact", "_replace", "id")
    assert first["table"] == [] and second["table"][0]["loss"] == "0.5"
    assert second["description"] == "Sweep s: 1 trials ended; the best is trial 0: loss 0.5"


def test_a_sweep_sends_prefect_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", {})
    redaction.add_secret("hunter42-of-the-sweep")
    trial = {
        "number": 0, "state": "failed", "value": None, "settings": {"data.source": "https://me:pass-of-mine@host/x"}, "run": "r",
        "error": "401 for hunter42-of-the-sweep",
    }  # fmt: skip
    page = Shown()
    SweepPage(page).show({"study": "s", "metric": "loss", "trials": [trial], "best": None, "winner": None})  # type: ignore[arg-type]
    ((_, sent),) = page.sent
    assert (sent["table"][0]["error"], sent["table"][0]["data.source"]) == ("401 for ***", "https://***@host/x")


def test_the_table_of_an_artifact_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    from trnflow.flows.services.run_view.artifacts import describe  # imports Prefect

    monkeypatch.setattr(redaction, "_known", {})
    redaction.add_secret("hunter42-of-the-store")
    step: Any = SimpleNamespace(name="train", action="ran", key="k", metrics={"loss": 0.5}, figures={})
    table = describe(step, Artifact("sha256:1", "weights", {}, ()), "s3://hunter42-of-the-store@bucket/blobs/1")
    assert "hunter42" not in table and "| manifest | `s3://***@bucket/blobs/1` |" in table and "| loss | 0.5 |" in table


def test_the_name_of_a_run_shows_no_part_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", {})
    redaction.add_secret("hunter42-of-the-run")
    page = Shown()
    RunName(page, "demo").say(f"{'x' * 60} hunter42-of-the-run is wrong")  # type: ignore[arg-type]
    assert page.sent == [("_rename", {"name": f"demo: {'x' * 60} *** is wrong"})]


def test_a_warning_is_one_in_prefect_s_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from trnflow.flows.services.run_view import stage_tasks  # imports Prefect

    monkeypatch.setattr(stage_tasks, "get_run_logger", lambda: logging.getLogger("toy"))
    log = EventLog(stage_tasks.PrefectLog())
    with caplog.at_level(logging.INFO, "toy"):
        log.write("note", level="warning", text="the disk is nearly full")
        log.write("note", level="info", text="rows were dropped")
    assert caplog.record_tuples == [
        ("toy", logging.WARNING, "the disk is nearly full"), ("toy", logging.INFO, "rows were dropped"),
    ]  # fmt: skip


def test_a_late_update_of_the_progress_ends_no_other_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    from trnflow.flows.services.run_view import artifacts  # imports Prefect

    answers = iter([False, True, False])
    monkeypatch.setattr(artifacts, "get_client", lambda **_: nullcontext())
    monkeypatch.setattr(artifacts, "_is_ready", lambda client: next(answers))
    page = artifacts.Page()
    assert page.show(lambda: "update", is_vital=False) is None
    assert page.show(lambda: "table") == "table"
    assert page.show(lambda: "link") is None and page.lost
    assert page.show(lambda: "table") is None, "a server that is lost is not asked again"
