"""Retrain as a user or a schedule does: commands in an empty folder, with data that grows, gets worse and gets better."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.flows.champions.conftest import RECIPE, STRONG, write_tiny
from tests.flows.prefect_api import PROJECT, Api
from tests.helpers.command_line import InProcessShell, Shell
from tests.helpers.ledgers import entries, titles
from tests.helpers.products import few
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.retraining import retrain as retraining
from trnflow.flows.retraining.ended import newest_ended, present_data
from trnflow.flows.runner.context import context_of, open_store
from trnflow.tasks.events import Event, EventLog, Reader, RunState

WARM = "train.warm_start_from=tiny@champion"
FIELDS = {
    "schema", "recipe", "run", "changed", "promoted", "stopped", "champion", "challenger", "frozen", "why", "metrics",
    "checks", "report", "notes",
}  # fmt: skip

pytestmark = pytest.mark.slow  # each test goes on from where the one before left the champions


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    """The command line in a folder with the recipe `tiny.yaml`, whose store is empty."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return InProcessShell(folder)


def retrain(shell: Shell, *arguments: str) -> Any:
    return shell.json("retrain", "tiny.yaml", "--direct", *arguments)


def judged(shell: Shell) -> dict[str, Any]:
    return next(entry for entry in ledger(shell) if entry["n"] == entry["stands"]["judged_by"])


def ended(shell: Shell) -> dict[str, Any]:
    return ledger(shell)[0]


def ledger(shell: Shell) -> list[dict[str, Any]]:
    return entries(shell.folder / ".trnflow/store", "tiny")


def rows_dropped(shell: Shell, run: str) -> Any:
    """What load_data dropped in a run, as the manifest of its artifact says."""
    store = shell.folder / ".trnflow/store"
    (rows,) = (
        one for one in json.loads((store / f"runs/{run}.json").read_text())["stages"] if one["stage"] == "load_data"
    )
    digest = rows["artifact"]
    return json.loads((store / "blobs/sha256" / digest[7:9] / digest[7:]).read_bytes())["meta"]["dropped"]


def append(shell: Shell, *rows: str, label: str = "pos") -> None:
    with (shell.folder / "rows/train.jsonl").open("a") as file:
        file.writelines(f"\n{json.dumps({'text': row, 'label': label})}" for row in rows)


def test_the_first_model_is_promoted_and_its_test_rows_were_frozen_before(tiny: InProcessShell) -> None:
    dry = retrain(tiny, "--dry-run")
    assert dry["changed"] and "no model of tiny was judged" in dry["why"]
    assert not list((tiny.folder / ".trnflow/store/runs").glob("*"))
    dry = retrain(tiny, "--dry-run", "checks=[{what: longest}]")
    assert dry["checks"] == [] and "the data was not checked: it is not loaded" in dry["notes"][0]
    first = retrain(tiny, "checks=[{what: longest}, {what: lengths, then: stop}, {what: leakage, then: stop}]")
    assert first.keys() == FIELDS
    assert [one["result"] for one in first["checks"]] == ["passed", "not applied", "passed"]
    assert first["promoted"] and first["changed"] and not first["stopped"]
    assert first["champion"] == first["challenger"] and first["metrics"] is None
    newest, frozen = ledger(tiny)
    assert (frozen["outcome"], frozen["number"], frozen["frozen"]) == ("frozen", 1, first["frozen"])
    assert (newest["outcome"], newest["number"], newest["by"]) == ("promoted", 1, "retrain")
    told = ("run", "champion", "challenger", "frozen", "why", "checks")
    assert {name: newest[name] for name in told} == {name: first[name] for name in told}
    (note,) = (note for note in first["notes"] if "frozen rows" in note)
    assert note.startswith(
        "on 160 frozen rows only a model 9.0 points of accuracy better is promoted (80% of the time at the first of "
    )
    assert note.endswith(
        "with 400 frozen rows 5 points are enough: add rows to the test split, then `trnflow freeze tiny`"
    )
    assert judged(tiny) == newest
    assert newest["data"] == newest["stands"]["settled"] is not None


def test_what_is_unchanged_starts_nothing(tiny: InProcessShell) -> None:
    runs = sorted((tiny.folder / ".trnflow/store/runs").iterdir())
    before = ledger(tiny)
    for more in ((), (WARM,), ("evaluate.export_rows=3",)):
        done = tiny("retrain", "tiny.yaml", "--json", *more)  # without --direct: Prefect would be started
        assert done.returncode == 0 and "load_data" not in done.stderr
        found = json.loads(done.stdout)
        assert found.keys() == FIELDS and not found["changed"] and found["run"] is None
    assert sorted((tiny.folder / ".trnflow/store/runs").iterdir()) == runs
    assert ledger(tiny) == before, "on settled data that is no news"
    past = tiny.json("history", "tiny")["history"]
    assert [one["outcome"] for one in past] == ["unchanged"] * 3 + ["promoted", "frozen"]
    assert past[0]["why"] == found["why"] and past[3]["page"] == f"trnflow report {past[3]['run']}"
    assert not (tiny.folder / ".trnflow/prefect").exists()


FLOW = """
from trnflow.flows.deployments import retrain
print(retrain("tiny.yaml", return_state=True).name)
print(retrain("none.yaml", return_state=True).name)
for more in ({"force": True, "why": "by an event"}, {"overrides": ["promote.force=true"]}):
    try:
        retrain("tiny.yaml", **more)
    except Exception as error:
        print(type(error).__name__)
"""


def test_prefect_has_the_state_and_an_event_with_the_result(tiny: InProcessShell, api: Api) -> None:
    environ = api.environ | {"TRNFLOW_HOME": str(tiny.folder / ".trnflow"), "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", FLOW], cwd=tiny.folder, env=environ, capture_output=True, text=True)
    assert done.stdout.split() == ["Unchanged", "Failed", "ParameterBindError", "ConfigError"], done.stderr
    wanted = {
        "event": {"prefix": ["trnflow.retrain."]},
        "resource": {"id": ["trnflow.recipe.tiny", "trnflow.recipe.none"]},
    }
    found: dict[str, Any] = {}
    deadline = time.monotonic() + 60  # the server writes events in batches
    while len(found) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
        found = {event["event"]: event for event in api.post("events/filter", filter=wanted)["events"]}
    assert found.keys() == {"trnflow.retrain.unchanged", "trnflow.retrain.failed"}
    payload = found["trnflow.retrain.unchanged"]["payload"]
    assert payload == json.loads(tiny("retrain", "tiny.yaml", "--json").stdout)
    assert found["trnflow.retrain.failed"]["payload"]["error"]["type"] == "ConfigError"


def test_a_better_model_of_other_settings_is_promoted_with_its_figures(tiny: InProcessShell) -> None:
    dry = retrain(tiny, "--dry-run", STRONG)
    assert dry["changed"] and "settings changed" in dry["why"] and "max_steps" in dry["why"]
    found = retrain(tiny, STRONG)
    metrics = found["metrics"]
    assert found["promoted"] and found["champion"] == found["challenger"]
    assert metrics["interval"][0] > metrics["margin"] and metrics["difference"] > 0
    assert metrics["challenger"] - metrics["champion"] == pytest.approx(metrics["difference"])


SHARES = "checks=[{what: rows, then: stop}, {what: label_share, then: stop, limit: 0.05}, {what: longest, limit: 9}]"


def test_a_check_stops_before_training_and_names_value_and_limit(tiny: InProcessShell) -> None:
    """Texts of the test split leak into train, too: they are counted before `load_data` drops them as frozen."""
    rows = tiny.folder / "rows/train.jsonl"
    sound, runs, before = rows.read_bytes(), sorted((tiny.folder / ".trnflow/store/runs").iterdir()), ended(tiny)
    append(tiny, *(f"fine {number}" for number in range(100)))
    leaked = [json.loads(row)["text"] for row in (tiny.folder / "rows/test.jsonl").read_text().splitlines()[:16]]
    append(tiny, *leaked)
    dry = retrain(tiny, "--dry-run", SHARES, STRONG)
    said = tiny("retrain", "tiny.yaml", "--dry-run", SHARES, STRONG).stdout
    assert (
        said.startswith("tiny would be stopped: the check label_share found 0.096") and "note: the check long" in said
    )
    assert ended(tiny) == before and dry["stopped"]
    done = tiny("retrain", "tiny.yaml", "--direct", "--json", SHARES, STRONG)
    found = json.loads(done.stdout)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert found["stopped"] and found["changed"] and not found["promoted"] and found["run"] is None
    assert [one["result"] for one in found["checks"]] == ["passed", "stopped", "warned"]
    assert dry["checks"] == found["checks"]
    assert "the check label_share found 0.096" in found["why"] and "above its limit 0.05" in found["why"]
    assert found["champion"] == judged(tiny)["champion"] == ended(tiny)["champion"]
    assert (ended(tiny)["outcome"], ended(tiny)["why"]) == ("stopped", found["why"])
    assert ended(tiny)["checks"] == found["checks"]
    assert ended(tiny)["stands"]["settled"] == ended(tiny)["data"] != before["stands"]["settled"]
    stopped = tiny("retrain", "tiny.yaml", "--direct", "checks=[{what: leakage, then: stop}]", STRONG)
    assert stopped.returncode == 1 and "16 of 160 test rows are also in train" in stopped.stdout
    assert sorted((tiny.folder / ".trnflow/store/runs").iterdir()) == runs
    rows.write_bytes(sound)


def test_a_column_or_labels_that_do_not_fit_are_one_clear_line(tiny: InProcessShell) -> None:
    rows = tiny.folder / "rows/train.jsonl"
    sound = rows.read_bytes()
    append(tiny, "something else", label="new")
    before = ended(tiny)
    dry = tiny.error("retrain", "tiny.yaml", "--dry-run", STRONG, code=1)
    assert ended(tiny) == before
    said = tiny.error("retrain", "tiny.yaml", "--direct", STRONG, code=1)
    for text in (dry, said):
        assert "other labels than its frozen rows 1 (only the data has new)" in text and "another `name`" in text
    rows.write_bytes(sound)
    append(tiny, "something else")
    said = tiny.error("retrain", "tiny.yaml", "--direct", STRONG, "checks=[{what: lengths, column: topic}]", code=2)
    assert "checks: lengths names the column topic, which the data does not have" in said
    assert "checks.0.what can't be 'rowz'" in tiny.error("retrain", "tiny.yaml", "checks=[{what: rowz}]", code=2)
    rows.write_bytes(sound)


class Appends(Reader):
    """Append a row each time that `load_data` ends, as a source that grows during a retrain. most: this often."""

    def __init__(self, shell: Shell, most: int) -> None:
        self.shell, self.left = shell, most

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "stage_ended" and event["stage"] == "load_data" and self.left:
            self.left -= 1
            append(self.shell, f"grown {self.left} {os.getpid()}")


@pytest.mark.parametrize("times", [1, 3])
def test_a_retrain_looks_at_its_source_again_once(
    tiny: InProcessShell, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tiny.folder / "rows/train.jsonl"
    sound = rows.read_bytes()
    append(tiny, "one more")
    monkeypatch.chdir(tiny.folder)
    recipe = settings.load("tiny.yaml", ["checks=[{what: longest, limit: 1, then: stop}]", STRONG])
    store = open_store(recipe)

    def train(*_: object) -> NoReturn:
        raise AssertionError("the check stops both rounds")

    listener = Appends(tiny, times)
    done = retraining.retrain(context_of(recipe, store), EventLog(listener), train)
    assert done.outcome == "stopped" and listener.left == max(0, times - 2)
    assert any("a first round ended as stopped" in note for note in done.notes)
    assert any("changed once more" in note for note in done.notes) == (times > 1)
    record = newest_ended(store, "tiny")
    assert record is not None and (record.data == present_data(recipe, store)) == (times == 1)
    rows.write_bytes(sound)


def test_a_second_retrain_ends_at_once_and_a_killed_one_leaves_the_way_free(tiny: InProcessShell) -> None:
    """The rows that are appended have wrong labels: the model, trained on from the champion, is worse and not promoted."""
    champion = judged(tiny)["champion"]
    tiny.json("get", "tiny.yaml", "tokenize_text", "tokens", STRONG)
    warm = (STRONG, WARM, "tokenize.train=null", "model.tokenizer=tokens/tokenizer")
    append(tiny, *(f"lovely bright happy {number}" for number in range(400)), label="neg")
    leaked = [json.loads(row)["text"] for row in (tiny.folder / "rows/test.jsonl").read_text().splitlines()[:7]]
    append(tiny, *leaked)
    dry = retrain(tiny, "--dry-run", STRONG)
    assert dry["changed"] and dry["why"].startswith("the data changed")

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    first = tiny.start("retrain", "tiny.yaml", "--direct", "--json", *warm, **pipes)
    while not any((tiny.folder / ".trnflow/store/leases").glob("*/*.json")):
        assert first.poll() is None
        time.sleep(0.05)
    before = ended(tiny)
    second = retrain(tiny, *warm)
    assert ended(tiny) == before  # the one that holds the lease says how this ends
    assert not second["changed"] and "another retrain of tiny is under way" in second["why"]
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    third = retrain(tiny, *warm)
    assert third["changed"] and not third["promoted"] and judged(tiny)["run"] == third["run"]
    assert third["champion"] == champion != third["challenger"]
    assert any(note.startswith("accuracy ") and "the simple baseline has" in note for note in third["notes"])
    assert rows_dropped(tiny, third["run"]) == {"frozen": len(leaked)}
    predicted = tiny.json("predict", "tiny.yaml", "a lovely day", *warm)  # `run` would not have dropped the rows
    for command in (("show", "tiny.yaml", "consolidate"), ("get", "tiny.yaml", "consolidate", "model")):
        assert tiny.json(*command, *warm)["artifact"] == predicted["model"]
    for command in (("plan", "tiny.yaml"), ("explain", "tiny.yaml", "train")):
        note, *promise = tiny.json(*command, *warm)["notes"]
        assert [said[:30] for said in promise] == ["on 160 frozen rows only a mode"] * (command[0] == "plan")
        assert f"made the model {third['challenger'][:19]}" in note and "without 7 training rows" in note
    assert tiny.json("promote", "tiny.yaml", *warm)["challenger"] == third["challenger"]
    again = retrain(tiny, *warm)
    assert not again["changed"] and "was not promoted" in again["why"] and again["challenger"] == third["challenger"]
    what_is_used_and_what_serves(tiny, again, warm)
    changed_settings_judge_again(tiny, warm)


def what_is_used_and_what_serves(shell: InProcessShell, kept: dict[str, Any], warm: tuple[str, ...]) -> None:
    """After a retrain that kept the champion each command says both in a line; by its name the champion is used."""
    used, serving = kept["challenger"], kept["champion"]
    number = shell.json("champions", "tiny")["champions"][0]["number"]

    def said(which: str, name: str) -> str:
        return f"note: {which} is {used[:19]}, not the champion: champion {number} ({serving[:19]}) serves, named {name}@champion"

    lines = shell("retrain", "tiny.yaml", "--direct", *warm).stdout.splitlines()
    assert lines[-1].startswith(f"tiny.yaml@champion is {serving[:19]}, not the newest judged model {used[:19]}: ")
    predicted = shell("predict", "tiny.yaml", "a lovely day", *warm)
    assert said("this", "tiny.yaml") in predicted.stderr.splitlines() and "note" not in predicted.stdout
    copied = shell("get", "tiny.yaml", "export_neuron", "exported", *warm).stdout.splitlines()
    assert copied[-1] == said("this", "tiny.yaml")
    assert "note" not in shell("get", "tiny.yaml", "load_data", "loaded", *warm).stdout
    run = judged(shell)["run"]
    assert shell("report", run, "--no-open").stdout.splitlines()[-1] == said("this run's model", "tiny")
    assert f"{serving[:19]}) serves" in Path(shell.json("report", run)["path"]).read_text()
    assert shell.json("report", run)["champion"] == serving
    assert shell.json("predict", "tiny.yaml", "a lovely day", *warm)["champion"] == serving
    named = shell("predict", "tiny.yaml@champion", "a lovely day")
    assert named.returncode == 0 and "note: this is" not in named.stderr


def changed_settings_judge_again(shell: InProcessShell, warm: tuple[str, ...]) -> None:
    """With a new share, as a new look; nothing is trained. Settings that judge nothing change nothing."""
    before = judged(shell)["comparison"]
    assert not retrain(shell, *warm, "promote.frozen_days=7", "promote.keep_models=5")["changed"]
    bolder = (*warm, "promote.confidence=0.9")
    dry = retrain(shell, "--dry-run", *bolder)
    assert dry["changed"] and dry["why"] == "promote.confidence changed since the newest model was judged"
    assert retrain(shell, *bolder)["changed"] and not retrain(shell, *bolder)["changed"]
    after = judged(shell)["comparison"]
    assert before["look"] > 0 and after["look"] == before["look"] + 1
    wanted = 0.05 / (after["look"] * (after["look"] + 1)) + 0.05 / 365
    assert after["alpha"] == pytest.approx(wanted) and judged(shell)["settings"]["confidence"] == 0.9


def test_data_that_can_not_be_read_fails_and_is_not_judged(tiny: InProcessShell) -> None:
    rows = tiny.folder / "rows/train.jsonl"
    sound, before = rows.read_bytes(), judged(tiny)
    rows.write_bytes(sound + b"\n{broken")
    done = tiny("retrain", "tiny.yaml", "--direct", "--json", STRONG)
    assert done.returncode == 1 and "is not JSON" in done.stderr
    found = json.loads(done.stdout)
    assert found["error"]["type"] == "DataError" and not found["promoted"] and found["changed"]
    assert judged(tiny) == before
    assert ended(tiny)["outcome"] == "failed" and ended(tiny)["stands"]["failures"] == 1
    assert ended(tiny)["error"] == found["error"]
    assert ended(tiny)["data"] != ended(tiny)["stands"]["settled"] is not None
    rows.write_bytes(sound)


def test_gc_keeps_the_judged_models_and_the_store_is_sound(tiny: InProcessShell) -> None:
    models = [one["model"] for one in ended(tiny)["stands"]["judged"]]
    tiny.json("gc", "--keep-last", "0", "--grace", "0", "--yes")
    assert len(models) == 3
    assert all((tiny.folder / ".trnflow/store/blobs/sha256" / one[7:9] / one[7:]).exists() for one in models)
    assert tiny("verify").returncode == 0


def test_champions_says_when_the_frozen_rows_are_old(tiny: InProcessShell) -> None:
    assert tiny.json("champions", "tiny")["notes"] == []
    file = tiny.folder / f".trnflow/store/roots/ledger/tiny/{ended(tiny)['stands']['frozen']['entry']}.json"
    document = json.loads(file.read_text())
    file.chmod(0o644)
    file.write_text(json.dumps(document | {"created": "2024-01-01T00:00:00Z"}))
    assert "the frozen rows 1 of tiny are" in tiny("champions", "tiny").stdout
    (tiny.folder / "old.yaml").write_text(f"{RECIPE}name: tiny\npromote: {{frozen_days: 1.0e+6}}\n")
    assert tiny.json("champions", "old.yaml")["notes"] == []


@pytest.mark.parametrize("after", few(["the champion", "the judgement"], 1))
def test_what_a_killed_retrain_of_an_older_version_promoted_is_reported_once(tmp_path: Path, after: str) -> None:
    """Format 1 had a file for the champion, one for the judgement and one for the retrain's end, written in this order."""
    shell = InProcessShell(tmp_path)
    write_tiny(tmp_path)
    first = retrain(shell)
    newest, frozen = ledger(shell)
    roots = tmp_path / ".trnflow/store/roots"
    shutil.rmtree(roots / "ledger")
    (roots.parent / "FORMAT.json").write_text('{"format":1,"hash":"sha256"}')
    title = newest | {"artifact": newest["champion"], "action": "promoted"}
    documents = {"frozen/tiny/1": frozen | {"artifact": frozen["frozen"]}, "champions/tiny/1": title}
    if after == "the judgement":
        documents["judged/tiny"] = {
            "run": first["run"], "created": newest["created"], "document": first, "earlier": [],
        }  # fmt: skip
    for name, document in documents.items():
        (roots / name).parent.mkdir(parents=True, exist_ok=True)
        (roots / f"{name}.json").write_text(json.dumps(document))
    again = retrain(shell)
    assert (again["promoted"], again["changed"]) == ((True, True) if after == "the champion" else (False, False))
    assert [entry["number"] for entry in titles(ledger(shell))] == ([1] if ledger(shell) else [])
    assert not retrain(shell)["changed"]
    shell.json("run", "tiny.yaml", "--direct", STRONG)
    assert shell.json("promote", "tiny.yaml", STRONG)["number"] == 2
    by_hand = retrain(shell, STRONG)
    assert not by_hand["promoted"] and by_hand["why"] == "this model is the champion already"


KILLED = """
import os, signal, sys
from trnflow.flows.cli.main import main
from trnflow.flows.retraining import retrain
retrain.mirror = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(["retrain", "tiny.yaml", "--direct"])
"""


def test_a_retrain_that_is_killed_after_its_promotion_has_told_all_of_it(tmp_path: Path) -> None:
    """Promotion, judgement and the retrain's end are one entry: there is no moment between them."""
    shell = InProcessShell(tmp_path)
    write_tiny(tmp_path)
    environ = {**shell.environ, "PYTHONPATH": str(PROJECT)}
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=environ, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    newest = ended(shell)
    assert (newest["outcome"], newest["number"], newest["by"]) == ("promoted", 1, "retrain")
    assert newest == judged(shell) and newest["stands"]["settled"] == newest["data"]
    again = retrain(shell)
    assert not again["changed"] and again["champion"] == newest["champion"] and "was promoted" in again["why"]
    assert len(ledger(shell)) == 2


def test_wrong_usage_exits_2(tiny: InProcessShell) -> None:
    assert "no recipe file" in tiny.error("retrain", "none.yaml", code=2)
    assert "no champion 77" in tiny.error("retrain", "tiny.yaml", "train.warm_start_from=tiny@77", code=2)
