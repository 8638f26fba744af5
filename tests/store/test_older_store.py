"""A store that commit 57f1fd9 made, before keys had form 2 and the package was `trnflow`, still stands."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.flows.champions.conftest import STRONG, write_tiny
from tests.helpers.command_line import InProcessShell, Shell, artifacts

pytestmark = pytest.mark.slow

COMMIT = "57f1fd9592015fab9e7a3af4ac9a6aca0229a4d8"
BOOT = "import sys; from flows.cli.main import main; sys.exit(main())"
SEVERAL = """
import contextlib, io, json, sys
from flows.cli.main import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*words, "--json"]) == 0, words
    print(json.dumps(json.loads(out.getvalue())))
"""
"""All commands in one process, which imports torch once."""
EVERYTHING = ("gc", "--keep-last", "0", "--grace", "0")
SUNNY = ("lovely sunny day", "awful rainy day")


def older_shell(folder: Path, checkout: Path) -> Shell:
    shell = Shell(folder, sys.executable, "-P", "-c", BOOT)
    shell.environ |= {"PYTHONPATH": str(checkout), "TRNFLOW_HOME": str(folder / ".trnflow")}
    return shell


def checkout(to: Path) -> Path:
    """Unpack COMMIT into a folder. Skips the test in a clone without its history."""
    git = ["git", "-C", str(PROJECT)]
    if subprocess.run([*git, "cat-file", "-e", f"{COMMIT}^{{commit}}"], capture_output=True).returncode:
        pytest.skip(f"{COMMIT[:7]} is not in this clone: fetch the whole history")
    archive = subprocess.run([*git, "archive", "--format=tar", COMMIT], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(to, filter="data")
    return to


def files_of(folder: Path, artifact: str, *endings: str) -> dict[str, Any]:
    """{path: digest} of an artifact's files with these endings, as its manifest has them, but those that no key counts."""
    manifest = json.loads((folder / ".trnflow/store/blobs/sha256" / artifact[7:9] / artifact[7:]).read_text())
    return {path: rest for path, *rest in manifest["files"] if path.endswith(endings) and not path.startswith("aside/")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What COMMIT's commands print of a store with two champions, frozen rows, a retrain, a pin and its runs."""
    folder = tmp_path_factory.mktemp("older")
    shell = older_shell(folder / "house", checkout(folder / "program"))
    shell.folder.mkdir()
    write_tiny(shell.folder)
    commands = {
        "weak": ("run", "tiny.yaml", "--direct"),
        "first": ("promote", "tiny.yaml"),
        "pin": ("pin", "last", "--name", "weak"),
        "retrained": ("retrain", "tiny.yaml", "--direct", STRONG),
        "champions": ("champions", "tiny"),
        "runs": ("runs",),
        "predictions": ("predict", "tiny.yaml@champion", *SUNNY),
        "swept": EVERYTHING,
    }
    words = [sys.executable, "-P", "-c", SEVERAL, json.dumps([*commands.values()])]
    done = subprocess.run(words, cwd=shell.folder, env=shell.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = dict(zip(commands, map(json.loads, done.stdout.splitlines()), strict=True))
    return printed | {
        "folder": shell.folder, "weak": printed["weak"]["run"], "swept": printed["swept"]["swept"]
    }  # fmt: skip


@pytest.fixture
def today(made: dict[str, Any], tmp_path: Path) -> InProcessShell:
    shutil.copytree(made["folder"], tmp_path / "house", symlinks=True)
    return InProcessShell(tmp_path / "house")


def champions(made: dict[str, Any]) -> list[dict[str, Any]]:
    """With the field that is new since."""
    return [one | {"forced": None} for one in made["champions"]["champions"]]


def predictions(made: dict[str, Any]) -> dict[str, Any]:
    return {**made["predictions"], "champion": None}


def test_all_of_it_is_read(made: dict[str, Any], today: InProcessShell) -> None:
    assert today.json("verify")["ok"]
    assert today.json("champions", "tiny")["champions"] == champions(made)
    assert today.json("runs")["runs"] == [run | {"job": None} for run in made["runs"]["runs"]]
    assert today.json("predict", "tiny.yaml@champion", *SUNNY) == predictions(made)
    assert today.json("unpin", "weak")["name"] == "weak"
    assert today("report", made["weak"]).returncode == 0


def test_gc_keeps_what_it_kept(made: dict[str, Any], today: InProcessShell) -> None:
    assert today.json(*EVERYTHING)["swept"] == made["swept"]
    for _ in range(2):  # the second one frees the trash
        today.json(*EVERYTHING, "--yes")
    assert today.json("verify")["ok"]
    assert today.json("champions", "tiny")["champions"] == champions(made)
    assert today.json("predict", "tiny.yaml@champion", *SUNNY) == predictions(made)
    weak = artifacts(today, made["weak"])["pack_chunks"]
    blobs = today.folder / ".trnflow/store/blobs/sha256"
    assert (blobs / weak[7:9] / weak[7:]).exists(), "the pinned run's"


def test_both_versions_run_on_one_store_and_leave_each_others_results(made: dict[str, Any], tmp_path: Path) -> None:
    """At once, on the same new rows; then each one finds its own results, and nothing is damaged."""
    shutil.copytree(made["folder"], tmp_path / "house", symlinks=True)
    older, today = older_shell(tmp_path / "house", made["folder"].parent / "program"), Shell(tmp_path / "house")
    older.environ["TRNFLOW_HOME"] = str(tmp_path / "older home")
    both = {"TRNFLOW_STORE": str(tmp_path / "house/.trnflow/store")}
    command = ("run", "tiny.yaml", "--until", "pack_chunks", "--direct", "--json", "data.limit=300")
    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(lambda shell: shell(*command, **both), (older, today))]
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    first = [{stage["stage"]: stage["artifact"] for stage in json.loads(one.stdout)["stages"]} for one in done]
    # where rows stand in the user's file, and the tokenizer's settings, are new
    for stage, endings in {"load_data": (".parquet",), "pack_chunks": (".arrow", ".npy")}.items():
        theirs, ours = (files_of(tmp_path / "house", one[stage], *endings) for one in first)
        assert theirs == ours and theirs
    for shell, artifact in zip((older, today), first, strict=True):
        again = json.loads(shell(*command, **both).stdout)["stages"]
        assert {stage["stage"]: stage["artifact"] for stage in again if stage["action"] == "hit"} == artifact
    for one in (verified := [shell("verify", "--json", **both) for shell in (older, today)]):
        assert one.returncode == 0, one.stderr
    assert [json.loads(one.stdout)["ok"] for one in verified] == [True, True]
    listed = [json.loads(shell("runs", "--json", **both).stdout)["runs"] for shell in (older, today)]
    assert {run["run"] for run in listed[0]} == {run["run"] for run in listed[1]}


def test_a_new_model_is_judged_against_the_old_champion(made: dict[str, Any], today: InProcessShell) -> None:
    champion = made["champions"]["champions"][0]
    plan = today.json("plan", "tiny.yaml", STRONG)["stages"]
    assert plan[0]["action"] == "run" and "the form of keys changed: 1 -> 2" not in plan[0]["why"]
    accepted = today.json("accept", "tiny.yaml", "--all", STRONG)["stages"]
    by_stage = {stage["stage"]: stage for stage in accepted}
    assert by_stage["consolidate"]["artifact"] == champion["artifact"]
    assert today.json("promote", "tiny.yaml", STRONG)["why"] == "this model is the champion already"
    weak = today.json("retrain", "tiny.yaml", "--direct", "train.max_steps=2")
    assert (weak["promoted"], weak["champion"]) == (False, champion["artifact"])
    assert weak["frozen"] == champion["frozen"] and weak["metrics"]["difference"] < 0
