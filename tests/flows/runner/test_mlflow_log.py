"""What a run keeps for MLflow of a stage; what it can't keep ends no run."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.runs import context, step
from tests.helpers.stores import new_store
from trnflow.flows.runner import run_log
from trnflow.flows.runner.mlflow_log import for_mlflow
from trnflow.flows.runner.run_log import begin_log
from trnflow.tasks.events import Event, Reader, RunState, log_file
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.layout import blob_name


class Notes(Reader):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def read(self, event: Event, state: RunState) -> None:
        self.texts += [event["text"]] if event["event"] == "note" else []


@pytest.mark.parametrize("is_lost", [False, True])
def test_plots_that_the_store_has_lost_are_a_remark(tmp_path: Path, is_lost: bool) -> None:
    store, notes = new_store(tmp_path), Notes()
    (tmp_path / "out").mkdir()
    for name in ("curve.png", "predictions.parquet", "report.html"):
        (tmp_path / "out" / name).write_text(name)
    artifact = store.ingest(tmp_path / "out", "evaluation", {"own": ["cost"]})
    if is_lost:
        plot = next(file for file in artifact.files if file.path == "curve.png")
        store.backend.remove(blob_name(plot.digest))
    made: Any = for_mlflow(context(store, notes), step("evaluate_model", "ran", artifact=artifact))
    assert (made["kind"], made["own"]) == ("evaluation", ["cost"])
    if is_lost:
        assert "plots" not in made and "MLflow will not have the plots of evaluate_model" in notes.texts[-1]
    else:
        assert made["plots"] == ["curve.png", "report.html"] and not notes.texts
        assert "plots" not in for_mlflow(context(store, notes), step("evaluate_model", "hit", artifact=artifact))


def test_the_tags_of_a_run_are_on_its_log(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    opened = context(store, run="one", settings=["tracking.enabled=true"])
    with begin_log(opened, tags={"study": "tiny"}):
        pass
    begun = json.loads(log_file(store.home, "one").read_text().splitlines()[0])
    assert begun["tracking"]["tags"] == {"study": "tiny"}


@pytest.mark.parametrize(("kind", "is_open", "copies"), [("run", False, 1), ("run", True, 0), ("prepare", False, 0)])
def test_runs_that_will_be_on_record_are_copied_to_the_store_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_open: bool, copies: int
) -> None:
    began: list[str] = []

    def copying(backend: Backend, home: Path, run: str) -> AbstractContextManager[None]:
        began.append(run)
        return nullcontext()

    monkeypatch.setattr(run_log, "copying", copying)
    opened = replace(context(new_store(tmp_path), run="one"), kind=kind)
    with begin_log(replace(opened, kind="check"), tags={}) if is_open else nullcontext(), begin_log(opened):
        pass
    assert began == ["one"] * copies
