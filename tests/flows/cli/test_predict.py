"""`trnflow predict` as a user runs it, after a real run: by recipe, run and digest, of texts and of files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest

import trnflow as tr
from tests.conftest import PROJECT
from tests.helpers.command_line import InProcessShell, Shell, artifacts, write_project

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

SMALL = ("train.max_steps=2", "tracking.enabled=false", "export.batch=4", "--on", "cpu")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shell, str]:
    """A folder in which `mine.yaml` was trained and exported, and the run's id."""
    shell = InProcessShell(write_project(tmp_path_factory.mktemp("project")))
    done = shell.json("run", "mine.yaml", "--until", "export_neuron", "--direct", *SMALL)
    return shell, done["run"]


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Predicting sets variables of its process, which here is that of other tests too."""
    with patch.dict(os.environ):
        yield


def rows_in(folder: Path, count: int = 10) -> Path:
    lines = [json.dumps({"id": n, "text": f"train {n} is {'good' if n % 3 else 'bad'}"}) for n in range(count)]
    (folder / "new.jsonl").write_text("\n".join(lines))
    return folder / "new.jsonl"


def test_a_recipe_a_run_and_a_digest_mean_the_same_model(project: tuple[Shell, str]) -> None:
    from transformers import pipeline

    shell, run = project
    found = shell.json("predict", "mine.yaml", *SMALL, "this is good", "and this bad")
    assert (found["schema"], found["task"]) == (1, "classification")
    assert found["model"] == artifacts(shell, run)["consolidate"]
    for name in (run, "last", "mine@newest", "mine.yaml@newest", found["model"], found["model"][7:19]):
        assert shell.json("predict", name, "this is good", "and this bad") == found
    if not (shell.folder / "model").exists():
        shell("get", "mine.yaml", "consolidate", "model", *SMALL)
    pipe = pipeline("text-classification", str(shell.folder / "model"), top_k=None, device="cpu")
    for ours, theirs in zip(found["results"], pipe(["this is good", "and this bad"]), strict=True):
        assert set(ours) == {"text", "label", "probabilities"}
        assert ours["label"] == theirs[0]["label"]
        assert ours["probabilities"] == {one["label"]: pytest.approx(one["score"], abs=1e-6) for one in theirs}


def test_a_prediction_does_not_import_torch_xla(project: tuple[Shell, str]) -> None:
    shell, run = project
    code = (
        "import sys\nfrom trnflow.flows.cli.main import main\n"
        f"code = main(['predict', '{run}', 'this is good'])\nassert not code and 'torch_xla' not in sys.modules"
    )
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
    environ.pop("USE_TORCH_XLA", None)
    subprocess.run([sys.executable, "-c", code], cwd=shell.folder, env=environ, check=True)


def test_text_after_two_dashes_is_never_an_override(project: tuple[Shell, str]) -> None:
    shell, _ = project
    done = shell("predict", "last", "one", "--json", "two", "--", "train.epochs=3", "--json", "-x", "--")
    texts = [row["text"] for row in json.loads(done.stdout)["results"]]
    assert texts == ["one", "two", "train.epochs=3", "--json", "-x", "--"]
    assert "goes after --" in shell.error("predict", "mine.yaml", "train.epochs=3", code=2)
    refused = shell.error("predict", "last", "one", "train.epochs=3", code=2)
    assert "last is no recipe, so train.epochs=3 can't change it" in refused and "goes after --" in refused


def test_rows_of_a_file_and_the_export(project: tuple[Shell, str]) -> None:
    shell, run = project
    rows, out = rows_in(shell.folder), shell.folder / "out.jsonl"
    said = shell.json("predict", "last", "--file", "new.jsonl", "--out", "out.jsonl")
    assert (said["rows"], said["out"]) == (10, "out.jsonl") and "results" not in said
    made = [json.loads(line) for line in out.read_text().splitlines()]
    texts = [json.loads(line)["text"] for line in rows.read_text().splitlines()]
    assert [(row["row"], row["text"]) for row in made] == list(enumerate(texts, 1))
    alone = shell.json("predict", "last", *texts)["results"]
    for row, single in zip(made, alone, strict=True):
        assert row["probabilities"] == pytest.approx(single["probabilities"], abs=1e-6)
    exported = shell.json("predict", "last", "--export", "--file", "new.jsonl")
    assert exported["model"] == artifacts(shell, run)["export_neuron"]
    for row, other in zip(made, exported["results"], strict=True):
        assert other["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)


def test_other_programs_read_what_was_written_and_find_each_row_by_its_id(project: tuple[Shell, str]) -> None:
    shell, _ = project
    rows = pd.DataFrame({
        "id": [f"T-{n}" for n in range(4)], "text": ["this is good", "", "train 3 is bad", "good " * 90],
        "label": ["gold"] * 4, "seen": pd.to_datetime(["2024-01-02"] * 4), "score": [0.5, None, 2.0, 3.0],
        "tags": [["a"], [], None, ["b", "c"]], "photo": [b"\xff\xd8"] * 4,
    }, index=[7, 3, 3, 1])  # fmt: skip
    rows.to_parquet(shell.folder / "rows.parquet")
    done = shell("predict", "last", "--file", "rows.parquet", "--out", "out.parquet")
    assert done.returncode == 0, done.stderr
    assert "do not carry label (a prediction's own name), photo (bytes)" in done.stderr
    assert "1 of 4 texts are empty and were not judged" in done.stderr
    found = pd.read_parquet(shell.folder / "out.parquet")
    names = ["row", "id", "seen", "score", "tags", "text", "label", "probabilities", "cut", "remark"]
    assert [name for name in found.columns if not name.startswith("__index")] == names
    assert [*found["id"]] == [*rows["id"]] and [*found["seen"]] == [*rows["seen"]]
    assert [*found["label"].isna()] == [False, True, False, False] == [*found["remark"].notna()]
    assert sum(dict(found["probabilities"][0]).values()) == pytest.approx(1) and found["cut"][3] > 0

    assert (
        shell("predict", "last", "--file", "rows.parquet", "--out", "out.csv", "--columns", "id,seen").returncode == 0
    )
    table = pd.read_csv(shell.folder / "out.csv")
    assert [*table.columns] == ["row", "id", "seen", *names[5:]] and [*table["id"]] == [*rows["id"]]
    assert json.loads(table["probabilities"][0]) == pytest.approx(dict(found["probabilities"][0]), abs=1e-6)
    done = shell("predict", "last", "--file", "rows.parquet", "--out", "-", "--columns=")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["text"] for line in lines] == [*rows["text"]] and {*lines[0]} == {
        "row",
        "text",
        "label",
        "probabilities",
    }
    assert [line["label"] for line in lines] == [*found["label"].astype(object).where(found["label"].notna(), None)]

    model = in_home(shell, lambda: tr.model("last"))
    frame = in_home(shell, lambda: model.predict(rows.drop(columns="photo")))
    assert [*frame.index] == [*rows.index] and [*frame["label"].fillna("")] == [*found["label"].fillna("")]
    assert [*frame["id"]] == [*rows["id"]] and frame["seen"].equals(rows["seen"])
    assert [*in_home(shell, lambda: model.predict(rows, columns=["id"])).columns[:2]] == ["id", "text"]
    assert [*in_home(shell, lambda: model.predict(rows["text"])).index] == [*rows.index]


def in_home(shell: Shell, call: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shell.folder)
        return call()


def test_a_device_that_is_given_stays_one(project: tuple[Shell, str]) -> None:
    shell, _ = project
    rows_in(shell.folder)
    null = shell.folder / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes a device")
    (shell.folder / "link.jsonl").symlink_to("null")
    for out in ("null", "link.jsonl"):
        done = shell("predict", "last", "--file", "new.jsonl", "--out", out)
        assert done.returncode == 0 and f"10 predictions in {out}" in done.stdout, done.stderr
    assert stat.S_ISCHR(null.lstat().st_mode) and (shell.folder / "link.jsonl").is_symlink()
    null.unlink()


def test_an_empty_text_is_said_in_the_terminal(project: tuple[Shell, str]) -> None:
    assert project[0]("predict", "last", "").stdout == "the text is empty  \n"


@pytest.mark.parametrize("export", [(), ("--export",)])
def test_a_text_that_was_cut_is_said(project: tuple[Shell, str], export: tuple[str, ...]) -> None:
    """Longer than in training, and than any shape of the export."""
    done = project[0]("predict", "last", *export, "good " * 200, "good")
    assert done.returncode == 0 and "note: 1 of 2 texts are too long for the model and were cut" in done.stderr
    cut, whole = done.stdout.splitlines()
    assert cut.endswith(" good good…") and whole.endswith("  good")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("last",), "predict needs a text, or rows by --file"),
        (("last", "text", "--file", "new.jsonl"), "predict needs a text or --file, not both"),
        (("last", "--serve", "text"), "--serve reads its texts from the page"),
        (("last", "--serve", "--file", "new.jsonl"), "--serve reads its texts from the page"),
        (("last", "--serve"), "--serve needs gradio, which is not installed"),
        (("last", "--port", "8000", "text"), "--port is the port of --serve"),
        (("nothing", "text"), "there is no recipe, run or artifact nothing"),
        (("demon", "text"), "did you mean demo?"),
        (("demo", "text"), "consolidate of demo has no artifact for these settings"),
        (("demo@champion", "text"), "demo has no champion"),
        (("last", "--file", "none.jsonl"), "there is no file none.jsonl"),
        (("last", "--file", "mine.yaml"), "mine.yaml is no data file by its name"),
        (("last", "--file", "bad.jsonl"), "bad.jsonl line 3 is not an object"),
        (
            ("last", "--file", "null.jsonl", "--out", "bad.jsonl"),
            "null.jsonl row 2: the column text is missing or null",
        ),
        (("last", "--file", "new.jsonl", "--out", "none/out"), "--out: none/out can't be written"),
        (("last", "--file", "new.jsonl", "--out", "new.jsonl"), "--out and --file are both new.jsonl"),
        (("last", "--file", "new.jsonl", "--out", "new.json"), "new.json ends in .json, which is no format"),
        (("last", "--file", "new.jsonl", "--out", "-", "--json"), "--out and --json both write to standard output"),
        (("last", "text", "--columns", "id"), "--columns names columns of the rows in --file"),
        (("last", "--file", "new.jsonl", "--columns", "nothing"), "the rows have no column nothing"),
        (("last", "--file", "new.jsonl", "--columns", "id,text"), "the column text has the name of a prediction's own"),
        (("last", "--file", "photo.parquet", "--columns", "photo"), "the column photo holds bytes"),
    ],
)
def test_wrong_use_is_one_clear_error(project: tuple[Shell, str], arguments: tuple[str, ...], says: str) -> None:
    shell, _ = project
    rows_in(shell.folder)
    (shell.folder / "bad.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n[3]\n')
    pd.DataFrame({"text": ["a"], "photo": [b"\xff\xd8"]}).to_parquet(shell.folder / "photo.parquet")
    (shell.folder / "null.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    done = shell("predict", *arguments)
    assert done.returncode in (1, 2) and says in done.stderr and "fix: " in done.stderr
    assert not done.stdout or "--json" in arguments
    assert not [*shell.folder.glob(".*.partial"), *shell.folder.glob("bad.jsonl.*"), *shell.folder.glob("new.json")]


def test_an_artifact_of_another_kind_and_a_run_without_a_model(project: tuple[Shell, str]) -> None:
    shell, run = project
    rows = artifacts(shell, run)["load_data"]
    assert "is of the kind rows, not model or exported" in shell.error("predict", rows, "text", code=2)
    only = shell.json("run", "mine.yaml", "--until", "load_data", "--direct", "data.limit=20", *SMALL)["run"]
    assert f"the run {only} has no artifact of consolidate" in shell.error("predict", only, "text", code=2)
    (shell.folder / f".trnflow/store/runs/{only}.json").unlink()


def test_publish_finds_runs_and_digests_in_the_named_store(project: tuple[Shell, str], tmp_path: Path) -> None:
    shell, run = project
    elsewhere, store = InProcessShell(tmp_path), str(shell.folder / ".trnflow/store")
    made = artifacts(shell, run)
    for name in (run, "last", made["consolidate"][7:19]):
        done = elsewhere.json("publish", name, f"out-{name}", "--store", store)
        assert done["artifact"] == made["consolidate"] and (tmp_path / f"out-{name}" / "config.json").exists()
    done = elsewhere.json("publish", run, "exported", "--what", "export", "--store", store)
    assert done["artifact"] == made["export_neuron"] and (tmp_path / "exported/export.json").exists()
    assert "no store" in elsewhere.error("publish", run, "none", "--store", str(tmp_path / "nowhere"), code=2)
    assert "of the kind exported, not model" in elsewhere.error(
        "publish", made["export_neuron"], "none", "--store", store, code=2
    )
