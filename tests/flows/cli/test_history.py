"""The commands on the past, as a user meets them after three runs: `runs`, `lineage`, `diff` and `report`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.helpers.browser import browser_at
from tests.helpers.command_line import DATA, InProcessShell, Shell, artifacts
from tests.store.test_ledger import add
from trnflow.tasks.store import Store


def test_runs_lists_the_newest_first_with_what_hit(past: Shell) -> None:
    found = past.json("runs")["runs"]
    assert [(run["hit"], run["ran"]) for run in found] == [(4, 0), (2, 2), (0, 4)]
    assert {(run["recipe"], run["outcome"]) for run in found} == {("mine", "completed")}
    assert all(run["seconds"] > 0 and run["ended"] for run in found)
    lines = past("runs").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [run["run"] for run in found]


def test_lineage_goes_up_to_the_data_and_down_to_the_chunks(past: Shell) -> None:
    newest, first = (past.json("runs")["runs"][place]["run"] for place in (0, 2))
    made = artifacts(past, newest)
    packed = past.json("lineage", made["pack_chunks"][7:19])
    assert (packed["kind"], packed["artifact"], packed["down"]) == ("packed", made["pack_chunks"], [])
    assert newest in packed["runs"]
    assert first not in packed["runs"]
    node, stages = packed["up"], []
    while node.get("stage"):
        stages.append(node["stage"])
        assert node["code"]
        node = next(node["inputs"][name] for name in ("tokens", "texts", "rows", "source") if name in node["inputs"])
    assert stages == ["pack_chunks", "tokenize_text", "format_prompts", "load_data"]
    assert "sha256:" in json.dumps(node["source"])

    down = past.json("lineage", made["format_prompts"])["down"]
    assert [(child["stage"], [below["stage"] for below in child["down"]]) for child in down] == [
        ("tokenize_text", ["pack_chunks"])
    ] * 2
    said = past("lineage", made["load_data"]).stdout
    assert "made by load_data" in said
    assert f"first in run {first} of mine: data " in said and ", code " in said
    assert "pack_chunks" in said


def test_diff_names_the_setting_and_what_it_changed(past: Shell) -> None:
    found = past.json("diff", "last~2", "last")
    assert found["settings"] == [{"name": "tokenize.max_length", "before": 64, "after": 16}]
    assert found["data"] == found["code"] == []
    newest, _, first = (run["run"] for run in past.json("runs")["runs"])
    assert (found["before"]["run"], found["after"]["run"]) == (first, newest)
    assert "tokenize_text" in [change["stage"] for change in found["artifacts"]]
    said = past("diff", "last~2", "last").stdout
    assert "tokenize.max_length: 64 -> 16" in said
    assert "code: the same" in said
    same = past.json("diff", "last~1", "last")
    assert not any(same[part] for part in ("settings", "data", "code", "artifacts", "metrics"))


def test_diff_names_data_that_changed(own_past: Shell) -> None:
    with (own_past.folder / "rows/train.jsonl").open("a") as handle:
        handle.write('\n{"text": "one more", "label": "pos"}')
    own_past.json("run", "mine.yaml", "--until", *DATA, "tokenize.max_length=16")
    found = own_past.json("diff", "last~1", "last")
    assert found["settings"] == []
    assert found["data"]
    assert {change["stage"] for change in found["artifacts"]} >= {"load_data", "format_prompts", "tokenize_text"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lineage", "ffffffffff"], "no artifact"),
        (["diff", "last", "last~9"], "has 3"),
        (["diff", "last", "2"], "begins 3 runs"),
        (["pin", "nothing-like-it"], "no artifact"),
        (["pin", "last", "--name", "../x"], "no name for a pin"),
        (["runs", "--store", "./nowhere"], "no store at ./nowhere"),
        (["gc", "--store", "./nowhere", "--yes"], "no store at"),
        (["accept", "mine.yaml", "tokenise_text"], "did you mean tokenize_text?"),
    ],
)
def test_wrong_usage_is_one_clear_error(past: Shell, arguments: list[str], says: str) -> None:
    assert says in past.error(*arguments, code=2)
    assert not (past.folder / "nowhere").exists()


@pytest.mark.parametrize(
    "arguments", [["gc", "--keep-last", "-1"], ["gc", "--grace", "nan"], ["gc", "--grace", "soon"]]
)
def test_the_parser_refuses_policies_that_mean_nothing(past: Shell, arguments: list[str]) -> None:
    assert past(*arguments).returncode == 2


def test_the_store_may_be_named_by_the_environment(past: Shell, tmp_path: Path) -> None:
    away = InProcessShell(tmp_path)
    assert "no store at" in away.error("runs", code=2)
    done = away("runs", "--json", TRNFLOW_STORE=str(past.folder / ".trnflow/store"))
    assert len(json.loads(done.stdout)["runs"]) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["lineage", "LOADED"],
        ["diff", "last~1", "last"],
        ["verify"],
        ["gc"],
        ["accept", "mine.yaml", "load_data"],
    ],
)
def test_nothing_heavy_is_imported(past: Shell, arguments: list[str]) -> None:
    loaded = artifacts(past, past.json("runs")["runs"][0]["run"])["load_data"]
    told = [loaded if argument == "LOADED" else argument for argument in arguments]
    program = (
        f"import sys; from trnflow.flows.cli.main import main; code = main({told!r});"
        "heavy = {'torch', 'torch_xla', 'prefect', 'mlflow', 'datasets', 'transformers', 'numpy', 'pyarrow', 'fsspec', 'rich'};"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or code)"
    )
    environ: dict[str, Any] = {**past.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(PROJECT))}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=past.folder, env=environ, capture_output=True, text=True
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_of_a_run_tells_its_stages_data_lineage_and_what_changed(own_past: Shell) -> None:
    newest, shorter, first = (run["run"] for run in own_past.json("runs")["runs"])
    found = own_past.json("report", shorter)
    path = own_past.folder / ".trnflow/reports" / f"{shorter}.html"
    assert found == {"schema": 1, "run": shorter, "path": str(path), "champion": None}
    html = path.read_text()
    assert f"mine: run {shorter}" in html and f"Difference from {first}" in html
    assert "tokenize.max_length" in html and "2 stages ran, 2 were reused" in html
    assert artifacts(own_past, shorter)["pack_chunks"][:19] in html
    assert "<script" not in html and "http" not in html.replace("http-equiv", "")
    done = own_past("report", "--no-open")
    assert (done.stdout, done.stderr) == (f"{path.with_name(f'{newest}.html')}\n", "")
    assert "Nothing differs." in path.with_name(f"{newest}.html").read_text()
    assert "first run on record" in Path(own_past.json("report", first)["path"]).read_text()
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(
        f"{run}.html" for run in (newest, shorter, first)
    )
    own_past.error("report", "2019", code=2)


def test_a_recipe_names_its_newest_run(own_past: Shell) -> None:
    newest = own_past.json("runs")["runs"][0]["run"]
    assert own_past.json("report", "mine.yaml")["run"] == newest
    assert own_past.json("diff", "last~2", "mine.yaml")["after"]["run"] == newest
    for recipe in ("mine.yaml", "mine"):  # a file, or the name by which `history` and `champions` know it
        assert own_past.json("logs", recipe)["run"] == own_past.json("report", recipe)["run"] == newest
        assert own_past("status", recipe).stdout == f"no stage of {newest} runs now\n"
    (own_past.folder / "new.yaml").write_text("extends: demo\n")
    assert "this store has no run of new.yaml" in own_past.error("report", "new.yaml", code=2)


def test_the_store_of_a_recipe_is_found_by_its_name_or_by_the_runs_of_this_machine(own_past: Shell) -> None:
    """As `store.root` of a recipe does: the home has no store, and the store is elsewhere. Later the home has one, too."""
    shell = own_past
    packed = artifacts(shell, shell.json("runs")["runs"][0]["run"])["pack_chunks"]
    shutil.move(shell.folder / ".trnflow/store", shell.folder / "bucket")
    recipe = shell.folder / "mine.yaml"
    recipe.write_text(f"{recipe.read_text()}store: {{root: bucket}}\n")
    shell.json("run", "mine.yaml", "--until", "load_data")
    assert shell.json("report", "mine.yaml")["run"]
    newest = shell.json("runs")["runs"][0]
    assert newest["recipe"] == "mine"
    assert shell.json("lineage", packed)["artifact"] == packed
    assert shell.json("history", "mine")["store"] == shell.json("champions")["store"] == str(shell.folder / "bucket")
    assert shell("runs").stderr == f"store: {shell.folder / 'bucket'}\n"
    (shell.folder / "other.yaml").write_text("extends: mine.yaml\nstore: {root: null}\n")
    shell.json("run", "other.yaml", "--until", "load_data")
    assert [run["recipe"] for run in shell.json("runs")["runs"]] == ["other"]
    assert shell.json("report", newest["run"])["run"] == newest["run"]
    assert shell.json("history", "mine")["store"] == str(shell.folder / "bucket")
    assert "there is no run" in shell.error("report", newest["run"], code=2, TRNFLOW_STORE=".trnflow/store")


def test_a_machine_without_a_browser_is_told(own_past: Shell) -> None:
    """A real terminal, and no program that could open the page: the page is there all the same."""
    import pty

    program = (
        "import sys, webbrowser; webbrowser.register_standard_browsers = lambda: None; webbrowser._tryorder = [];"
        "from trnflow.flows.cli.main import main; sys.exit(main(['report']))"
    )
    environ: dict[str, Any] = {**own_past.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(PROJECT))}
    screen, terminal = pty.openpty()
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=own_past.folder, env=environ, stdout=terminal, stderr=subprocess.PIPE, text=True)
    os.close(terminal)
    path = Path(os.read(screen, 65536).decode().strip())
    os.close(screen)
    assert (done.returncode, done.stderr) == (0, "no browser was found: open the file in one\n")
    assert path.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_run_fits_the_screen(own_past: Shell, tmp_path: Path, width: int) -> None:
    """In a browser of a phone's and of a desk's width: no table is cut, and nothing is asked for."""
    with browser_at(Path(own_past.json("report")["path"]).as_uri(), tmp_path) as page:
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        page.wait_for(f"document.querySelector('table') && innerWidth == {width}")
        assert page.value("document.documentElement.scrollWidth") <= width
        cut = "[...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth).length"
        assert page.value(cut) == 0 and page.value("document.querySelectorAll('.wide').length") > 1
        assert all(address.startswith(("file:", "data:")) for address in page.requests)


@pytest.mark.slow
def test_names_in_the_store_stay_text_on_the_pages_of_a_run_and_of_health(own_past: Shell, tmp_path: Path) -> None:
    """Opened in chromium, which would run what a name, a reason or a metric smuggled in."""
    planted = "</title></td><script>window.planted = 1</script><img src=x onerror='window.planted = 1'>"
    store = Store(str(own_past.folder / ".trnflow/store"), own_past.folder / ".trnflow")
    run = own_past.json("runs")["runs"][0]["run"]
    record = json.loads((own_past.folder / f".trnflow/store/runs/{run}.json").read_text())
    record["notes"] = [planted]
    record["error"] = {"type": planted, "message": planted, "fix": planted, "stage": planted}
    record["stages"][0] |= {"why": planted, "figures": {planted: 1.0}, "metrics": {planted: planted}}
    store.write_run(run, {**record, "outcome": planted})
    add(store, "mine", outcome="failed", by="retrain", why=planted, run=run)
    own_past("health")
    for file in (Path(own_past.json("report")["path"]), own_past.folder / ".trnflow/reports/health.html"):
        with browser_at(file.as_uri(), tmp_path / file.stem) as page:
            page.wait_for("document.querySelector('table')")
            assert page.value("document.body.innerText.includes('<script>window.planted')"), file
            assert page.value("window.planted === undefined && document.images.length + document.scripts.length === 0")
