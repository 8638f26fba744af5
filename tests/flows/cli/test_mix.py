"""A recipe of two sources at the command line: what plan, explain, lineage and MLflow say of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.command_line import DATA, InProcessShell, Shell, write_project
from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.tracking.mlflow_runs import data_sources

MIXED = """extends: mine.yaml
name: mixed
data:
  source: null
  mix:
    rows: {source: rows, weight: 0.5}
    more: {source: more, weight: 0.5, text: body, label: stars >= 3, labels: [neg, pos]}
"""


@pytest.fixture
def trnflow(tmp_path: Path) -> Shell:
    shell = InProcessShell(write_project(tmp_path))
    (tmp_path / "more").mkdir()
    (tmp_path / "more/train.csv").write_text("body,stars\n" + "".join(f"more {n},{1 + n % 5}\n" for n in range(100)))
    (tmp_path / "mixed.yaml").write_text(MIXED)
    return shell


def test_run_plan_explain_and_lineage(trnflow: Shell) -> None:
    done = trnflow.json("run", "mixed.yaml", "--until", *DATA)
    assert done["stages"][0]["metrics"] == {"train_rows": 80, "validation_rows": 40, "test_rows": 40}
    meta = trnflow.json("show", "mixed.yaml", "load_data")["meta"]
    assert meta["sources"]["train"] == {"more": 40, "rows": 40}

    shutil.copytree(trnflow.folder / "more", trnflow.folder / "moved")
    moved = ("mixed.yaml", "data.mix.more.source=moved")
    assert [stage["action"] for stage in trnflow.json("plan", *moved)["stages"][:4]] == ["hit"] * 4
    with (trnflow.folder / "moved/train.csv").open("a") as handle:
        handle.write("one more,5\n")
    assert trnflow.json("plan", *moved)["stages"][0]["action"] == "run"
    why = trnflow.json("explain", moved[0], "load_data", moved[1], "data.mix.rows.weight=0.6")
    assert [change["name"] for change in why["changes"]] == ["mix.rows.weight", "source.mix.more.files"]

    artifact = trnflow.json("show", "mixed.yaml", "load_data")["artifact"]
    source = trnflow.json("lineage", artifact)["up"]["inputs"]["source"]["source"]
    assert {name: [file["split"] for file in one["files"]] for name, one in source["mix"].items()} == {
        "more": ["train"], "rows": ["train", "validation", "test"],
    }  # fmt: skip
    assert "source: mix.more.files" in trnflow("lineage", artifact).stdout


def test_mlflow_hears_of_every_source(trnflow: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trnflow.folder)
    recipe = settings.load("mixed.yaml", ["data.mix.more.source=https://me:hunter2@host/set.csv"])
    told = data_sources(recipe.to_json())
    assert told["data.mix.rows.source"] == "rows"
    assert "hunter2" not in told["data.mix.more.source"] and "host/set.csv" in told["data.mix.more.source"]
    assert data_sources(settings.load("mine.yaml").to_json()) == {"data.source": "rows"}


def test_a_misspelt_setting_of_a_source_suggests_the_nearest(trnflow: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trnflow.folder)
    with pytest.raises(ConfigError, match=r"data\.mix\.more\.wieght is not a setting") as caught:
        settings.load("mixed.yaml", ["data.mix.more.wieght=1"])
    assert caught.value.fix == "did you mean data.mix.more.weight?"
