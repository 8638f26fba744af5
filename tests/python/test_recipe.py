"""A recipe from Python: its plan, what a run raises, what it hides, and its page in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import trnflow as tr
from tests.helpers.command_line import write_project
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from trnflow.flows.python.run import Model, Report, _opened
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.store import Store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(write_project(tmp_path / "house"))
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    return tmp_path / "house"


def test_a_plan_names_all_that_may_run_and_raises_what_a_run_would(folder: Path) -> None:
    mine = tr.recipe("mine.yaml")
    plan = mine.plan()
    assert plan.due == [stage["stage"] for stage in plan.stages]
    assert [stage["action"] for stage in plan.stages][:2] == ["run", "maybe"]
    with pytest.raises(ConfigError, match="no column author"):
        mine.set(data__text="author").plan()


def test_an_error_about_data_in_memory_names_the_given_row(folder: Path, inline_calls: None) -> None:  # noqa: F811
    rows = [{"text": f"{word} {number}", "label": word} for number in range(6) for word in ("good", "bad")]
    mine = tr.recipe("mine.yaml").set(tracking__enabled=False)
    for data, said in (
        ([*rows, {"text": None, "label": "bad"}], r"split train, row 13 \(.iloc\[12\]\): the text column"),
        (
            {"train": rows, "test": [{"text": None, "label": "bad"}, *rows]},
            r"split test, row 1 \(.iloc\[0\]\): the text",
        ),
    ):
        given = mine.set(data=data, data__split={"test": 0.3, "validation": 0.2})
        with pytest.raises(DataError, match=said):
            given.run(until="load_data")
    with pytest.raises(ConfigError, match="data.text: the given data of train has no column author"):
        mine.set(data=rows, data__text="author").plan()


def test_a_run_raises_the_error_of_its_stage(folder: Path, inline_calls: None) -> None:  # noqa: F811
    rows = folder / "rows/train.jsonl"
    rows.write_text(rows.read_text().replace('"text": "train 3 is bad"', '"text": null'))
    mine = tr.recipe("mine.yaml").set(tracking__enabled=False)
    with pytest.raises(DataError, match="row 4") as caught:
        mine.run(until="load_data")
    # what a notebook prints: the user's line and the call, not the runner's ten frames
    assert [entry.name for entry in caught.traceback][1:] == ["run"]


def test_settings_and_the_recipe_in_a_notebook_hide_secrets(folder: Path) -> None:
    mine = tr.recipe("mine.yaml").set(launch__environment={"HF_TOKEN": "hf_not_for_notebooks"})
    assert "HF_TOKEN" in str(mine.settings)
    assert "not_for_notebooks" not in f"{mine.settings} {mine._repr_html_()}"


def test_the_page_of_a_run_is_whole_in_its_frame(tmp_path: Path) -> None:
    page = '<!DOCTYPE html><p class="note">a &lt; b & "c"</p>\n'
    (tmp_path / "run.html").write_text(page)
    found: list[dict[str, str | None]] = []

    class Frames(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append({"tag": tag, **dict(attrs)})

    Frames().feed(Report(tmp_path / "run.html")._repr_html_())
    (frame,) = found
    assert (frame["tag"], frame["srcdoc"], "sandbox" in frame) == ("iframe", page, True)


def test_a_run_that_is_awaited_is_asked_for_as_any_other() -> None:
    assert signature(tr.Recipe.run_async) == signature(tr.Recipe.run)


def test_the_files_of_an_artifact_are_opened_in_the_home_again_and_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    (tmp_path / "made").mkdir()
    (tmp_path / "made/rows").write_text("rows")
    artifact = store.ingest(tmp_path / "made", "rows", {}, cache=False)
    for _ in range(2):
        folder = _opened(store, artifact)
        assert folder.parent == store.home / "cache/opened" and (folder / "rows").read_text() == "rows"


def test_a_rehearsal_asks_for_rows_that_are_elsewhere(folder: Path) -> None:
    mine = tr.recipe("mine.yaml").set(data__source="http://127.0.0.1:1/train.jsonl")
    with pytest.raises(DataError, match=r"can't be read: \[Errno 111\]"):
        mine.rehearse()


def test_predictions_have_the_index_of_their_rows_and_a_process_for_each_number_of_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    class Process:
        def __init__(self, folder: Path, kind: str, meta: object, most: int) -> None:
            self.ended, self.max_new_tokens = False, most
            begun.append(most)

        def predict(self, rows: Any, columns: Any) -> list[dict[str, Any]]:
            return [{"label": "good"} for _ in (rows if isinstance(rows, list) else rows.index)]

    monkeypatch.setattr("trnflow.tasks.prediction.separate_process.PredictingProcess", Process)
    monkeypatch.setattr(Model, "path", tmp_path)
    model = Model(Store(str(tmp_path), tmp_path), Artifact("sha256:m", "model", {"task": "classification"}, ()))
    frame = pd.DataFrame({"text": ["a", "b"]}, index=[7, 3])
    assert [*model.predict(frame).index] == [7, 3] == [*model.predict(frame["text"]).index]
    assert [*model.predict("a").index] == [0] and begun == [256], "the process is kept"
    model.predict("a", max_new_tokens=5)
    assert begun == [256, 5]
    kept: Any = model._process
    kept.ended = True
    model.predict("a", max_new_tokens=5)
    assert begun == [256, 5, 5]
