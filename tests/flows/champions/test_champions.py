"""Freeze, promote and roll back as a user does, with real models. The tests follow each other in one store."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.flows.champions.conftest import STRONG, write_rows
from tests.helpers.command_line import InProcessShell, artifacts
from tests.helpers.small_disk import fill, small_disk
from trnflow.flows.champions.contenders import of_recipe
from trnflow.flows.champions.promote import promote
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import context_of, open_store
from trnflow.tasks.events import Event, EventLog, Reader, RunState
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.ledger import read_ledger

pytestmark = pytest.mark.slow  # each test goes on from where the one before left the champions


def champions(shell: InProcessShell) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.json("champions", "tiny")["champions"]
    return found


def artifact_folder(shell: InProcessShell, digest: str, to: Path) -> Path:
    blobs = shell.folder / ".trnflow/store/blobs/sha256"
    manifest = json.loads((blobs / digest[7:9] / digest[7:]).read_bytes())
    to.mkdir()
    for path, _, blob in manifest["files"]:
        (to / path).write_bytes((blobs / blob[7:9] / blob[7:]).read_bytes())
    return to


def test_freezing_and_rolling_back_write_the_entry_in_their_log(tiny: InProcessShell) -> None:
    """In a recipe of its own, so that the tests that follow begin without frozen rows."""
    for command in (["freeze"], ["promote"], ["promote", STRONG], ["rollback"]):
        tiny.json(command[0], "tiny.yaml", *command[1:], "name=logged")
    logs = [path.read_text().splitlines() for path in (tiny.folder / ".trnflow").rglob("events.jsonl")]
    events = [json.loads(line) for lines in logs for line in lines if json.loads(lines[0])["recipe"] == "logged"]
    written = sorted((event["entry"] for event in events if event["event"] == "decided"), key=lambda entry: entry["n"])
    store = Store(str(tiny.folder / ".trnflow/store"), tiny.folder / ".trnflow")
    assert written == read_ledger(store, "logged").entries()[::-1]
    assert [entry["by"] for entry in written] == ["freeze", "promote", "promote", "rollback"]
    assert sum(event["event"] == "run_ended" for event in events) == 4


def test_the_first_promotion_freezes_rows_and_says_so(tiny: InProcessShell, tmp_path: Path) -> None:
    assert champions(tiny) == []
    done = tiny("promote", "tiny.yaml")
    assert done.returncode == 0, done.stderr
    assert "there were no frozen rows: froze the present test rows as number 1" in done.stdout
    (first,) = champions(tiny)
    assert first["number"] == 1 and first["replaces"] is None and first["comparison"] is None
    rows = pq.read_table(artifact_folder(tiny, first["frozen"], tmp_path / "frozen") / "test.parquet").to_pydict()
    written = [json.loads(line) for line in (tiny.folder / "rows/test.jsonl").read_text().splitlines()]
    assert rows["text"] == [row["text"] for row in written]
    assert rows["label"] == [row["label"] for row in written]
    assert len(set(rows["row_id"])) == 160


def test_the_champion_predicts_whatever_the_settings(tiny: InProcessShell) -> None:
    (first,) = champions(tiny)
    found = tiny.json("predict", "tiny.yaml@champion", "lovely sunny day")
    assert found["model"] == first["artifact"] and found["results"][0]["label"] in ("pos", "neg")
    strong = tiny.json("predict", "tiny.yaml", STRONG, "lovely sunny day")
    assert strong["model"] != first["artifact"] and strong["results"][0]["label"] == "pos"
    for name in ("tiny@1", "tiny.yaml@1", "tiny@champion"):
        assert tiny.json("predict", name, "lovely sunny day") == found
    assert tiny.json("predict", "tiny.yaml@champion", STRONG, "lovely sunny day") == found
    assert "has no artifact of export_neuron" in tiny.error("predict", "tiny.yaml@champion", "--export", "a", code=2)


def test_a_lost_champion_is_named_with_what_helps(tiny: InProcessShell, tmp_path: Path) -> None:
    """The settings of the failed command are the challenger's, which would not make the champion again."""
    shutil.copytree(tiny.folder, tmp_path / "house", symlinks=True)
    shell = InProcessShell(tmp_path / "house")
    store = Store(str(shell.folder / ".trnflow/store"), shell.folder / ".trnflow")
    (weights,) = (
        one for one in store.artifact(champions(tiny)[0]["artifact"]).files if one.path == "model.safetensors"
    )
    (shell.folder / ".trnflow/store" / blob_name(weights.digest)).unlink()
    error, fix = shell.error("promote", "tiny.yaml", STRONG, code=1).splitlines()[-2:]  # below the stages' lines
    assert error.startswith("error") and "champion 1 can't be compared: the store has lost model.safetensors" in error
    assert fix.startswith("  fix: ") and "`trnflow rollback tiny`" in fix


def test_a_challenger_that_is_not_better_leaves_the_champion(tiny: InProcessShell) -> None:
    same = tiny.json("promote", "tiny.yaml")
    assert not same["promoted"] and same["why"] == "this model is the champion already"
    # one more step of the same training differs by noise
    tiny.json("run", "tiny.yaml", "--direct", "--until", "consolidate", "train.max_steps=2", "train.learning_rate=1e-9")
    found = tiny.json("promote", "tiny.yaml", "last")
    assert not found["promoted"] and found["number"] == 1
    assert found["champion"] != found["challenger"]
    assert found["comparison"]["low"] <= 0
    assert len(champions(tiny)) == 1


def test_last_is_the_last_run_of_the_recipe_that_has_a_model(tiny: InProcessShell) -> None:
    """Other runs may come after it: those of another recipe, and those that end before there is a model."""
    made = tiny.json("runs")["runs"][0]["run"]
    other = tiny.json("run", "tiny.yaml", "--direct", "--until", "consolidate", "name=other")["run"]
    tiny.json("prepare", "tiny.yaml", "--direct")
    found = tiny.json("promote", "tiny.yaml", "last")
    assert found["challenger"] == artifacts(tiny, made)["consolidate"]
    assert f"the run {other} is of the recipe other, not of tiny" in tiny.error("promote", "tiny.yaml", other, code=2)
    assert "there is no run last~9 of tiny that made a model" in tiny.error("promote", "tiny.yaml", "last~9", code=2)
    assert "there is no run last of third" in tiny.error("promote", "tiny.yaml", "last", "name=third", code=2)
    assert len(champions(tiny)) == 1


def test_a_better_one_becomes_champion_by_the_figures_of_its_evaluation(tiny: InProcessShell, tmp_path: Path) -> None:
    from sklearn.metrics import f1_score

    found = tiny.json("promote", "tiny.yaml", STRONG)
    assert found["promoted"] and found["number"] == 2
    assert found["comparison"]["low"] > 0
    newest, first = champions(tiny)
    assert newest["replaces"] == first["artifact"]
    report = json.loads((artifact_folder(tiny, newest["evaluation"], tmp_path / "e") / "report.json").read_bytes())
    assert found["comparison"]["challenger"] == pytest.approx(report["metrics"]["f1_weighted"], abs=1e-9)
    scores = pq.read_table(artifact_folder(tiny, newest["scores"], tmp_path / "s") / "scores.parquet").to_pydict()
    f1 = f1_score(scores["label"], scores["predicted"], average="weighted")
    assert f1 == pytest.approx(found["comparison"]["challenger"])


def test_rollback_names_the_earlier_model_and_stops_at_the_first(tiny: InProcessShell) -> None:
    before = champions(tiny)
    back = tiny.json("rollback", "tiny.yaml")
    assert back["number"] == 3 and back["artifact"] == before[1]["artifact"]
    assert [one["number"] for one in champions(tiny)] == [3, 2, 1]
    assert "no champion before" in tiny.error("rollback", "tiny.yaml", code=2)
    again = tiny.json("promote", "tiny.yaml", before[0]["artifact"][:20])
    assert again["promoted"] and again["number"] == 4


class Rival(Reader):
    """Promotes another challenger while the champion is being compared with the first."""

    critical = True

    def __init__(self, recipe: settings.Recipe, store: Store) -> None:
        self.recipe, self.store, self.scored = recipe, store, 0

    def read(self, event: Event, state: RunState) -> None:
        is_scored = event["event"] == "stage_ended" and event["stage"] == "score_rows"
        self.scored += is_scored
        if is_scored and self.scored == 2:  # the challenger was scored, now the champion
            assert promote(context_of(self.recipe, self.store), of_recipe(self.recipe, self.store), EventLog()).promoted


def test_who_loses_the_race_is_compared_with_the_new_champion(
    tiny: InProcessShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are better than the champion; the second becomes champion while the first is compared."""
    tiny.json("rollback", "tiny.yaml")
    middle = "train.max_steps=39"
    tiny.json("run", "tiny.yaml", "--direct", "--until", "consolidate", middle)
    monkeypatch.chdir(tiny.folder)
    monkeypatch.delenv("TRNFLOW_HOME", raising=False)
    first, second = (settings.load("tiny.yaml", [steps]) for steps in (middle, STRONG))
    store = open_store(first)
    found = promote(context_of(first, store), of_recipe(first, store), EventLog(rival := Rival(second, store)))
    assert rival.scored >= 3
    newest = read_ledger(store, "tiny").champion
    assert newest is not None and newest["champion"] == of_recipe(second, store).artifact.digest
    assert not found.promoted
    assert found.champion == newest["champion"] and found.number == newest["number"]
    assert found.comparison is not None and found.comparison.low <= 0


def test_of_two_processes_one_makes_its_model_champion_and_the_other_compares_again(tiny: InProcessShell) -> None:
    """Both challengers are better than the champion, and neither is better than the other."""
    before = tiny.json("rollback", "tiny.yaml")["number"]
    both = [
        tiny.start("promote", "tiny.yaml", steps, "--json", stdout=subprocess.PIPE)
        for steps in ("train.max_steps=39", STRONG)
    ]
    found = [json.loads(process.communicate()[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    (winner,), (loser,) = ([one for one in found if one["promoted"] is won] for won in (True, False))
    assert winner["number"] == loser["number"] == champions(tiny)[0]["number"] == before + 1
    assert loser["champion"] == winner["challenger"] == champions(tiny)[0]["artifact"]
    assert loser["comparison"]["champion"] == winner["comparison"]["challenger"]


def test_a_full_disk_leaves_the_champion(tiny: InProcessShell, tmp_path: Path) -> None:
    """Full is the disk of home and store, then that of the store alone."""
    size = sum(path.stat().st_size for path in tiny.folder.rglob("*") if path.is_file())
    with small_disk(tmp_path / "disk", size + (16 << 20)) as disk:
        shell = InProcessShell(disk / "project")
        shutil.copytree(tiny.folder, shell.folder, symlinks=True)
        shell.json("rollback", "tiny.yaml")
        store = shell.folder / ".trnflow/store"
        before, roots = champions(shell), sorted((store / "roots").rglob("*"))
        ballast = fill(disk)
        elsewhere = {"TRNFLOW_HOME": str(tmp_path / "home")}
        for environ in ({}, elsewhere):
            what = ("promote", "tiny.yaml", STRONG, "store.min_free_gb=0", f"store.root={store}")
            said = shell.error(*what, code=1, **environ)
            (line,) = (line for line in said.splitlines() if line.startswith("error"))
            assert "full" in line or "No space left" in line
            assert champions(shell) == before and sorted((store / "roots").rglob("*")) == roots
        ballast.unlink()
        assert shell.json("promote", "tiny.yaml", STRONG)["promoted"]
        assert shell.json("verify")["ok"]


def test_the_page_of_a_run_begins_with_what_was_decided_about_its_model(tiny: InProcessShell) -> None:
    past = tiny.json("history", "tiny")["history"]
    kept = next(entry for entry in past if entry["outcome"] == "kept")
    pair, titles = kept["comparison"], [entry for entry in past if entry["number"] and entry["n"] < kept["n"]]
    champion = next(entry["number"] for entry in titles if entry["outcome"] != "frozen")
    html = Path(tiny.json("report", kept["run"])["path"]).read_text()
    first = html.partition('<p class="note">')[2].partition("</p>")[0]
    figures = f"{pair['metric']} {pair['challenger']:.4g} against {pair['champion']:.4g} of champion {champion}"
    assert first.startswith(f"kept: {figures}; difference {pair['difference']:+.4g}, interval {pair['low']:+.4g} to ")
    assert f"; 160 frozen rows of {past[-1]['created'][:10]}; budget spent " in first
    promoted = next(entry for entry in past if entry["outcome"] == "promoted" and entry["run"] != kept["run"])
    assert '<p class="note">promoted: ' in Path(tiny.json("report", promoted["run"])["path"]).read_text()


def test_collection_keeps_the_champions_and_they_compare_again(tiny: InProcessShell) -> None:
    tiny.json("gc", "--yes", "--keep-last", "0", "--grace", "0")
    tiny.json("gc", "--yes", "--keep-last", "0", "--grace", "0")
    assert tiny.json("verify")["ok"]
    assert tiny.json("rollback", "tiny.yaml")["artifact"] == champions(tiny)[-1]["artifact"]


def test_history_tells_all_decisions_newest_first(tiny: InProcessShell) -> None:
    found = tiny.json("history", "tiny")
    past = found["history"]
    assert found["recipe"] == "tiny" and past == tiny.json("history", "tiny.yaml")["history"]
    assert [one["n"] for one in past] == [*range(len(past), 0, -1)]
    assert (past[-1]["outcome"], past[-1]["by"]) == ("frozen", "freeze")
    assert {one["outcome"] for one in past} == {"frozen", "promoted", "kept", "rolled back"}
    titles = [one for one in past if one["number"] and one["outcome"] != "frozen"]
    assert [(one["number"], one["champion"]) for one in titles] == [
        (one["number"], one["artifact"]) for one in champions(tiny)
    ]
    kept = next(one for one in past if one["outcome"] == "kept")
    assert kept["comparison"]["metric"] == "f1_weighted" and kept["challenger"] != kept["champion"] and kept["run"]
    lines = tiny("history", "tiny").stdout.splitlines()
    assert lines[0].split()[:4] == ["n", "created", "outcome", "by"] and len(lines) == len(past) + 3
    assert "nothing happened to models of other" in tiny("history", "other").stdout
    assert tiny.json("history", "other")["history"] == []


def test_freezing_again_changes_no_earlier_rows(tiny: InProcessShell) -> None:
    place = tiny.folder / ".trnflow/store/roots/ledger/tiny"
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    write_rows(tiny.folder / "rows", {"pos": "pos", "neg": "neg"}, seed=2)
    assert tiny.json("freeze", "tiny.yaml")["number"] == 2
    assert {file.name: file.read_bytes() for file in place.iterdir() if file.name in before} == before
    entries = [json.loads(file.read_text()) for file in place.iterdir()]
    first, second = sorted((entry["number"], entry["frozen"]) for entry in entries if entry["outcome"] == "frozen")
    assert first[1] != second[1]


def test_frozen_rows_of_other_labels_are_refused(tiny: InProcessShell) -> None:
    before = champions(tiny)
    write_rows(tiny.folder / "rows", {"pos": "pos", "neg": "bad"}, seed=2)
    tiny.json("freeze", "tiny.yaml")
    said = tiny.error("promote", "tiny.yaml", before[1]["artifact"][:20], code=1)
    assert "the frozen rows have other labels than the model: bad, neg are in one of them only" in said
    assert champions(tiny) == before


def test_bad_input_is_one_clear_line(tiny: InProcessShell) -> None:
    assert "has no model for these settings" in tiny.error("promote", "tiny.yaml", "train.max_steps=77", code=2)
    assert "is of kind frozen" in tiny.error("promote", "tiny.yaml", champions(tiny)[0]["frozen"][:20], code=2)
    said = tiny.error("promote", "tiny.yaml", champions(tiny)[1]["artifact"], "promote.metric=bits_per_byte", code=2)
    assert "bits_per_byte is no metric of this task" in said
    assert "has no champion" in tiny.error("rollback", "tiny.yaml", "name=other", code=2)
