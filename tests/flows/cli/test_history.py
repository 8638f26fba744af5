"""The commands on the past, as a user meets them: three runs of a recipe's data stages, then questions and upkeep."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.keys.key_document import key_of
from tests.conftest import PROJECT
from tests.helpers.browser import browser_at
from tests.helpers.command_line import DATA, InProcessShell, Shell, artifacts, write_project


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Runs: last~2 as the recipe says, last~1 with shorter rows, last all hits; none of them may be changed."""
    shell = InProcessShell(write_project(tmp_path_factory.mktemp("past") / "house"))
    for override in ("", "tokenize.max_length=16", "tokenize.max_length=16"):
        shell.json("run", "mine.yaml", "--until", *DATA, *([override] if override else []))
    return shell


@pytest.fixture
def trnflow(past: Shell, tmp_path: Path) -> Shell:
    """A copy of that past, to change."""
    shutil.copytree(past.folder, tmp_path / "house", symlinks=True)
    return InProcessShell(tmp_path / "house")


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
    assert "pack_chunks" in said


def test_diff_names_the_setting_and_what_it_changed(past: Shell) -> None:
    found = past.json("diff", "last~2", "last")
    assert found["settings"] == [{"name": "tokenize.max_length", "before": 64, "after": 16}]
    assert found["data"] == found["code"] == []
    assert "tokenize_text" in [change["stage"] for change in found["artifacts"]]
    said = past("diff", "last~2", "last").stdout
    assert "tokenize.max_length: 64 -> 16" in said
    assert "code: the same" in said
    same = past.json("diff", "last~1", "last")
    assert not any(same[part] for part in ("settings", "data", "code", "artifacts", "metrics"))


def test_diff_names_data_that_changed(trnflow: Shell) -> None:
    with (trnflow.folder / "rows/train.jsonl").open("a") as handle:
        handle.write('\n{"text": "one more", "label": "pos"}')
    trnflow.json("run", "mine.yaml", "--until", *DATA, "tokenize.max_length=16")
    found = trnflow.json("diff", "last~1", "last")
    assert found["settings"] == []
    assert found["data"]
    assert {change["stage"] for change in found["artifacts"]} >= {"load_data", "format_prompts", "tokenize_text"}


def test_verify_finds_damage_and_repair_lets_the_next_run_make_it_anew(trnflow: Shell) -> None:
    assert trnflow.json("verify")["ok"]
    newest = trnflow.json("runs")["runs"][0]["run"]
    digest = artifacts(trnflow, newest)["tokenize_text"].removeprefix("sha256:")
    blob = trnflow.folder / ".trnflow/store/blobs/sha256" / digest[:2] / digest
    blob.chmod(0o644)
    blob.write_text("{}")
    done = trnflow("verify", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert [problem["what"] for problem in document["problems"]] == ["corrupt", "unusable"]
    assert digest in trnflow("verify").stdout
    assert trnflow.json("verify", "--repair")["ok"]
    assert trnflow.json("verify")["problems"] == []
    again = trnflow.json("run", "mine.yaml", "--until", *DATA, "tokenize.max_length=16")
    assert [stage["action"] for stage in again["stages"]] == ["hit", "hit", "ran", "hit"]


def record_of(shell: Shell, stage: str) -> Path:
    """Of the newest run."""
    run = shell.json("runs")["runs"][0]["run"]
    stages = json.loads((shell.folder / f".trnflow/store/runs/{run}.json").read_text())["stages"]
    key = next(found["key"] for found in stages if found["stage"] == stage)
    return shell.folder / f".trnflow/store/records/{stage}/{key}.json"


def rewrite(path: Path, **fields: Any) -> None:
    path.chmod(0o644)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_record_of_another_stage_s_artifact_is_a_miss_and_reported(trnflow: Shell) -> None:
    record = record_of(trnflow, "format_prompts")
    rewrite(record, artifact=artifacts(trnflow, trnflow.json("runs")["runs"][0]["run"])["load_data"])
    (problem,) = json.loads(trnflow("verify", "--json").stdout)["problems"]
    assert (problem["what"], problem["name"]) == ("unusable", f"records/format_prompts/{record.name}")
    assert "is of kind rows, and format_prompts makes texts" in problem["detail"]
    plan = trnflow.json("plan", "mine.yaml", "tokenize.max_length=16")["stages"][1]
    assert plan["action"] == "run" and "is of kind rows" in plan["why"]
    again = trnflow.json("run", "mine.yaml", "--until", *DATA, "tokenize.max_length=16")
    assert [stage["action"] for stage in again["stages"]] == ["hit", "ran", "hit", "hit"]
    assert any("is of kind rows" in note for note in again["notes"])
    assert trnflow.json("verify")["ok"]


@pytest.mark.parametrize("field", [{"attempt": ["a"]}, {"shards": 3}, {"adopted": "yes"}, {"schema": 2}], ids=str)
def test_a_record_of_another_shape_is_a_miss_and_reported(trnflow: Shell, field: dict[str, Any]) -> None:
    record = record_of(trnflow, "tokenize_text")
    rewrite(record, **field)
    (problem,) = json.loads(trnflow("verify", "--json").stdout)["problems"]
    assert (problem["what"], problem["name"]) == ("corrupt", f"records/tokenize_text/{record.name}")
    again = trnflow.json("run", "mine.yaml", "--until", *DATA, "tokenize.max_length=16")
    assert [stage["action"] for stage in again["stages"]] == ["hit", "hit", "ran", "hit"]


def spoil(blob: Path) -> None:
    """As a disk does it: other bytes, of the same size, under the same times but for ctime."""
    then, data = blob.stat(), blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    os.utime(blob, ns=(then.st_atime_ns, then.st_mtime_ns))


def test_a_blob_that_changed_on_disk_is_hashed_by_run_before_it_is_a_hit(tmp_path: Path) -> None:
    shell = InProcessShell(write_project(tmp_path / "house"))
    made = shell.json("run", "mine.yaml", "--until", *DATA)["stages"]
    files = shell.json("show", "mine.yaml", "pack_chunks")["files"]
    own = [digest[7:] for path, _, digest in files if path.endswith(".arrow")]
    blobs = [shell.folder / ".trnflow/store/blobs/sha256" / digest[:2] / digest for digest in own]

    blobs[0].touch()  # its bytes are sound
    plan = shell.json("plan", "mine.yaml")["stages"]
    assert [stage["action"] for stage in plan[:5]] == ["hit", "hit", "hit", "maybe", "run"]
    assert plan[3]["why"].endswith("changed on disk, run will check")
    assert (plan[3]["key"], plan[3]["artifact"]) == (made[3]["key"], made[3]["artifact"])
    assert [s["action"] for s in shell.json("run", "mine.yaml", "--until", *DATA)["stages"]] == ["hit"] * 4
    assert shell.json("plan", "mine.yaml")["stages"][3]["action"] == "hit", "hashed once"

    for blob in blobs[:2]:
        spoil(blob)
    assert shell.json("plan", "mine.yaml")["stages"][3]["action"] == "maybe"
    assert blobs[0].exists(), "plan reads and moves nothing"
    again = shell.json("run", "mine.yaml", "--until", *DATA)
    assert [stage["action"] for stage in again["stages"]] == ["hit", "hit", "hit", "ran"]
    assert any("was corrupt: quarantined" in note for note in again["notes"])
    assert again["stages"][3]["artifact"] == made[3]["artifact"]
    for blob in blobs:
        said = subprocess.run(["sha256sum", str(blob)], capture_output=True, text=True, check=True).stdout
        assert said.split()[0] == blob.name
    assert [s["action"] for s in shell.json("run", "mine.yaml", "--until", *DATA)["stages"]] == ["hit"] * 4


def test_gc_says_what_it_would_do_then_does_it_and_the_last_run_still_hits(trnflow: Shell) -> None:
    store = trnflow.folder / ".trnflow/store"
    before = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    policy = ("--keep-last", "1", "--grace", "0")
    assert trnflow.json("gc")["bytes"] == 0, "all is younger than the grace period"
    promised = trnflow.json("gc", *policy)
    assert promised["dry_run"]
    assert promised["swept"]["runs"]["files"] == 1, "the two newest came to the same and count once"
    assert promised["swept"]["records"]["files"] == 2 + 3, "two stages, and a shard of each split"
    assert sum(path.stat().st_size for path in store.rglob("*") if path.is_file()) == before
    assert "--yes" in trnflow("gc", *policy).stdout
    assert trnflow.json("gc", *policy, "--yes")["bytes"] == promised["bytes"]
    assert trnflow.json("gc", *policy, "--yes")["purged_bytes"] == promised["bytes"]
    after = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    assert before - after == promised["bytes"]
    assert trnflow.json("verify")["ok"]
    again = trnflow.json("run", "mine.yaml", "--until", *DATA, "tokenize.max_length=16")
    assert [stage["action"] for stage in again["stages"]] == ["hit"] * 4
    plan = trnflow.json("plan", "mine.yaml")
    assert [stage["action"] for stage in plan["stages"][:3]] == ["hit", "hit", "run"]


def test_a_pin_holds_against_gc_until_unpin(trnflow: Shell) -> None:
    everything = ("gc", "--keep-last", "0", "--grace", "0")
    first = trnflow.json("runs")["runs"][2]["run"]
    tokens = artifacts(trnflow, first)["tokenize_text"]
    assert trnflow.json("pin", "last", "--name", "best")["name"] == "best"
    assert trnflow.json("pin", tokens[7:20])["artifact"] == tokens
    assert trnflow.json("pin", "last", "--name", "best")["name"] == "best", "twice is once"
    assert "best" in trnflow.error("pin", first, "--name", "best", code=2)
    assert trnflow.json(*everything)["swept"]["records"]["files"] == 1
    trnflow.json("unpin", tokens[7:19])
    assert trnflow.json(*everything)["swept"]["records"]["files"] == 2 + 3
    trnflow.json("unpin", "best")
    assert trnflow.json(*everything)["swept"]["records"]["files"] == 6 + 6
    assert "there is no pin best" in trnflow.error("unpin", "best", code=2)


class Refactored:
    """The program in a folder of its own, so that a stage's code can be changed."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        for part in ("flows", "tasks", "conf"):
            shutil.copytree(PROJECT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shell.environ["PYTHONPATH"] = str(folder)
        self.stage = folder / "tasks/tokenize_text.py"


def test_accept_lets_a_past_result_stand_for_refactored_code(trnflow: Shell, tmp_path: Path) -> None:
    trnflow = Shell(trnflow.folder)
    code = Refactored(trnflow, tmp_path / "code")
    assert trnflow.json("accept", "mine.yaml", "tokenize_text")["accepted"] is False
    code.stage.write_text(code.stage.read_text() + "\n\nREFACTORED = True\n")
    plan = trnflow.json("plan", "mine.yaml")["stages"]
    assert (plan[2]["action"], plan[2]["why"]) == ("run", "code of tasks.tokenize_text changed")
    done = trnflow.json("accept", "mine.yaml", "tokenize_text")
    assert done["accepted"]
    assert [(change["part"], change["name"]) for change in done["changes"]] == [("code", "tasks.tokenize_text")]
    plan = trnflow.json("plan", "mine.yaml")["stages"]
    assert [stage["action"] for stage in plan[:4]] == ["hit"] * 4
    assert plan[2]["why"].startswith("adopted")
    record = json.loads((trnflow.folder / f".trnflow/store/records/tokenize_text/{plan[2]['key']}.json").read_text())
    assert record["adopted"]["from"] == done["from"]
    assert record["artifact"] == done["artifact"]
    assert "adopted from" in trnflow("lineage", done["artifact"]).stdout
    assert trnflow.json("show", "mine.yaml", "tokenize_text")["figures"] is not None
    assert trnflow.json("verify")["ok"]


def rewritten(shell: Shell, stage: str, **changed: Any) -> dict[str, Any]:
    """Put the record of a stage under the key of another key document, as if an earlier release had made it."""
    (file,) = (shell.folder / ".trnflow/store/records" / stage).iterdir()
    record = json.loads(file.read_text())
    record["document"] |= changed
    record["key"] = key_of(record["document"])
    file.unlink()
    file.with_name(f"{record['key']}.json").write_text(json.dumps(record))
    return record


def test_accept_adopts_what_a_release_with_other_module_names_made(past: Shell, tmp_path: Path) -> None:
    shell = InProcessShell(shutil.copytree(past.folder, tmp_path / "house"))
    old_code = {
        "tasks": "schema:1",
        "tasks.load_data": f"sha256:{'0' * 64}",
        "tasks.text.sources": f"sha256:{'1' * 64}",
    }
    old = rewritten(shell, "load_data", code=old_code)
    assert shell.json("plan", "mine.yaml")["stages"][0]["action"] == "run"
    done = shell.json("accept", "mine.yaml", "load_data")
    assert (done["accepted"], done["from"], done["artifact"]) == (True, old["key"], old["artifact"])
    assert [stage["action"] for stage in shell.json("plan", "mine.yaml")["stages"][:4]] == ["hit"] * 4
    assert shell.json("verify")["ok"] and len(shell.json("runs")["runs"]) == 3


@pytest.mark.parametrize(("length", "accepted"), [(16, True), (17, False)])
def test_accept_knows_a_setting_that_moved_to_another_section(
    past: Shell, tmp_path: Path, length: int, accepted: bool
) -> None:
    shell = InProcessShell(shutil.copytree(past.folder, tmp_path / "house"))
    (file, other) = (shell.folder / ".trnflow/store/records/tokenize_text").iterdir()
    if json.loads(file.read_text())["document"]["params"]["max_length"] != 16:
        file, other = other, file
    other.unlink()
    params = json.loads(file.read_text())["document"]["params"]
    del params["max_length"]
    rewritten(shell, "tokenize_text", params=params | {"limits": {"max_length": length}})
    if accepted:
        assert shell.json("accept", "mine.yaml", "tokenize_text", "tokenize.max_length=16")["accepted"]
    else:
        said = shell.error("accept", "mine.yaml", "tokenize_text", "tokenize.max_length=16", code=2)
        assert "limits.max_length" in said


def test_accept_refuses_what_is_no_refactor(trnflow: Shell) -> None:
    said = trnflow.error("accept", "mine.yaml", "tokenize_text", "tokenize.max_length=32", code=2)
    assert "params.max_length" in said
    said = trnflow.error("accept", "mine.yaml", "train", "tokenize.max_length=32", code=2)
    assert "not known yet" in said


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


def test_a_damaged_root_stops_gc_with_exit_code_1(trnflow: Shell) -> None:
    pins = trnflow.folder / ".trnflow/store/roots/pins"
    pins.mkdir(parents=True)
    (pins / "torn.json").write_text("{")
    assert "roots/pins/torn.json" in trnflow.error("gc", "--yes", code=1)


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
        f"import sys; from flows.cli.main import main; code = main({told!r});"
        "heavy = {'torch', 'torch_xla', 'prefect', 'mlflow', 'datasets', 'transformers', 'numpy', 'pyarrow', 'fsspec', 'rich'};"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or code)"
    )
    environ: dict[str, Any] = {**past.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(PROJECT))}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=past.folder, env=environ, capture_output=True, text=True
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_of_a_run_tells_its_stages_data_lineage_and_what_changed(trnflow: Shell) -> None:
    newest, shorter, first = (run["run"] for run in trnflow.json("runs")["runs"])
    found = trnflow.json("report", shorter)
    path = trnflow.folder / ".trnflow/reports" / f"{shorter}.html"
    assert found == {"schema": 1, "run": shorter, "path": str(path)}
    html = path.read_text()
    assert f"mine: run {shorter}" in html and f"Difference from {first}" in html
    assert "tokenize.max_length" in html and "2 stages ran, 2 were reused" in html
    assert artifacts(trnflow, shorter)["pack_chunks"][:19] in html
    assert "<script" not in html and "http" not in html.replace("http-equiv", "")
    assert trnflow("report", "--no-open").stdout == f"{path.with_name(f'{newest}.html')}\n"
    assert "Nothing differs." in path.with_name(f"{newest}.html").read_text()
    assert "first run on record" in Path(trnflow.json("report", first)["path"]).read_text()
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(
        f"{run}.html" for run in (newest, shorter, first)
    )
    trnflow.error("report", "2019", code=2)


def test_a_machine_without_a_browser_is_told(trnflow: Shell) -> None:
    """A real terminal, and no program that could open the page: the page is there all the same."""
    import pty

    program = (
        "import sys, webbrowser; webbrowser.register_standard_browsers = lambda: None; webbrowser._tryorder = [];"
        "from flows.cli.main import main; sys.exit(main(['report']))"
    )
    environ: dict[str, Any] = {**trnflow.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(PROJECT))}
    screen, terminal = pty.openpty()
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=trnflow.folder, env=environ, stdout=terminal, stderr=subprocess.PIPE, text=True)
    os.close(terminal)
    path = Path(os.read(screen, 65536).decode().strip())
    os.close(screen)
    assert (done.returncode, done.stderr) == (0, "no browser was found: open the file in one\n")
    assert path.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_run_fits_the_screen(trnflow: Shell, tmp_path: Path, width: int) -> None:
    """In a browser of a phone's and of a desk's width: no table is cut, and nothing is asked for."""
    with browser_at(Path(trnflow.json("report")["path"]).as_uri(), tmp_path) as page:
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        page.wait_for(f"document.querySelector('table') && innerWidth == {width}")
        assert page.value("document.documentElement.scrollWidth") <= width
        cut = "[...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth).length"
        assert page.value(cut) == 0 and page.value("document.querySelectorAll('.wide').length") > 1
        assert all(address.startswith(("file:", "data:")) for address in page.requests)
