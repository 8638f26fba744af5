"""What an addition costs: each patch is applied to a copy of the program, which then runs by `trnflow run`."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.flows.champions.conftest import RECIPE, STRONG, write_rows, write_tiny
from tests.helpers.checkouts import copy_program
from tests.helpers.command_line import Shell, artifacts

METRIC = "balanced_accuracy"


def patched(folder: Path, name: str) -> tuple[Shell, list[str]]:
    """A shell of a copy of the program with a patch, in an empty folder, and the lines of `git diff --stat`."""
    code, work = folder / "code", folder / "work"
    copy_program(code)

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        command = ["git", "-C", str(code), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "before")
    git("apply", "--index", str(Path(__file__).with_name(f"{name}.patch")))
    work.mkdir()
    shell = Shell(work)
    shell.environ["PYTHONPATH"] = str(code)
    return shell, [" ".join(line.split()) for line in git("diff", "--cached", "--stat").splitlines()]


def test_a_metric_is_one_entry_in_the_table_of_settings(tmp_path: Path) -> None:
    shell, changed = patched(tmp_path, "metric")
    assert changed[-1] == "1 file changed, 8 insertions(+)"
    assert f"f1_macro, {METRIC}, " in shell("settings", "promote.metric").stdout


@pytest.mark.nightly
def test_a_metric_is_one_entry_and_is_seen_everywhere(tmp_path: Path) -> None:
    shell, _ = patched(tmp_path, "metric")
    (shell.folder / "tiny.yaml").write_text(RECIPE.replace("tracking: {enabled: false}", "tracking: {enabled: true}"))
    write_rows(shell.folder / "rows", {"pos": "pos", "neg": "neg"})
    table = shell("run", "tiny.yaml", "--direct")
    assert table.returncode == 0, table.stderr
    report = shell.folder / "got"
    shell.json("get", "tiny.yaml", "evaluate_model", str(report))
    value = json.loads((report / "report.json").read_text())["metrics"][METRIC]
    predicted = pq.read_table(report / "predictions.parquet").to_pylist()
    recalls = [
        sum(row["predicted"] == label for row in predicted if row["label"] == label)
        / sum(row["label"] == label for row in predicted)
        for label in ("pos", "neg")
    ]
    assert value == pytest.approx(sum(recalls) / 2)
    assert f"{METRIC} {value:.4g}" in table.stdout
    for page in ((report / "report.html").read_text(), Path(shell.json("report")["path"]).read_text()):
        head, _, _ = page.partition("<table")  # the cards stand before the tables
        assert METRIC in head and f"{value:.4g}" in head
    check_mlflow(shell.folder / ".trnflow", value)

    # one look a year: of 365 each calls a metric that is only a function 36,500 times, half a minute more
    promoting = (f"promote.metric={METRIC}", "promote.looks_per_year=1")
    first = shell.json("promote", "tiny.yaml", *promoting)
    shell.json("run", "tiny.yaml", "--direct", "--until", "consolidate", STRONG)
    strong = shell.json("promote", "tiny.yaml", STRONG, *promoting)
    assert first["promoted"] and strong["promoted"]
    assert strong["comparison"]["metric"] == METRIC and strong["comparison"]["champion"] == pytest.approx(value)
    assert 0 < strong["comparison"]["low"] < strong["comparison"]["difference"]
    shell.json("publish", "tiny.yaml", str(shell.folder / "published"))
    assert f"name: {METRIC}" in (shell.folder / "published/README.md").read_text()


def check_mlflow(home: Path, value: float) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    (experiment,) = (found for found in client.search_experiments() if found.name == "trnflow")
    deadline = time.monotonic() + 120  # a run does not wait for an upload that takes longer than 20 s
    for name in (f"evaluate_model/{METRIC}", METRIC):  # of the pipeline's run, and of the stage's
        values: list[float] = []
        while not values and time.monotonic() < deadline:
            runs = client.search_runs([experiment.experiment_id])
            values = [run.data.metrics[name] for run in runs if name in run.data.metrics]
            time.sleep(0.2)
        assert values == [value]


def test_a_file_format_is_two_places(tmp_path: Path) -> None:
    """It is known by the file's name, or by the setting."""
    shell, changed = patched(tmp_path, "format")
    assert changed == [
        "tasks/data/load/readers.py | 5 +++++",
        "tasks/sources/data_files.py | 1 +",
        "2 files changed, 6 insertions(+)",
    ]
    assert "psv" in shell("settings", "data.format").stdout
    rows = "text|label\n" + "".join(f"row {number}|{number % 2}\n" for number in range(20))
    for name, more in (("rows.psv", []), ("rows", ["data.format=psv"])):
        (shell.folder / name).write_text(rows)
        data = f"data: {{source: {name}, name: null, text: text, label: label, split: {{}}}}\n"
        (shell.folder / "piped.yaml").write_text(f"extends: demo\n{data}")
        run = shell.json("run", "piped.yaml", "--until", "load_data", "--direct", "tracking.enabled=false", *more)
        assert artifacts(shell, run["run"])["load_data"]
        shell.json("get", "piped.yaml", "load_data", str(shell.folder / f"got-{name}"), *more)
        texts = pq.read_table(shell.folder / f"got-{name}/train.parquet")["text"].to_pylist()
        assert texts == [f"row {n}" for n in range(20)]


@pytest.mark.slow
def test_a_stage_is_its_module_its_lines_in_the_pipeline_and_its_section(tmp_path: Path) -> None:
    shell, changed = patched(tmp_path, "stage")
    assert [line.split()[0] for line in changed] == [
        "flows/finetune.py", "flows/recipes/recipe.py", "tasks/lower_text.py", "3",
    ]  # fmt: skip
    write_tiny(shell.folder)
    for file in (shell.folder / "rows").iterdir():
        file.write_text(file.read_text().replace('"text": "', '"text": "LOUD '))
    assert "Whether texts are lowercased." in shell("settings", "lower.enabled").stdout
    run = shell.json("run", "tiny.yaml", "--direct", "lower.enabled=true")
    stages = [stage["stage"] for stage in run["stages"]]
    assert stages[1:4] == ["format_prompts", "lower_text", "tokenize_text"] and len(stages) == 10
    shell.json("get", "tiny.yaml", "lower_text", str(shell.folder / "got"), "lower.enabled=true")
    texts = pq.read_table(shell.folder / "got/test.parquet")["text"].to_pylist()
    assert texts == [text.lower() for text in texts] and texts[0].startswith("loud ")
    assert "loud" in shell("preview", "tiny.yaml", "lower.enabled=true").stdout
    plan = shell.json("plan", "tiny.yaml")["stages"]
    assert [stage["action"] for stage in plan[:4]] == ["hit", "hit", "run", "maybe"]
    assert plan[2]["why"] == "params.enabled: True -> False"
