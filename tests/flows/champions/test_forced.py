"""A person makes a model champion by force: recorded, shown until the next promotion by evidence, and by no other way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import STRONG, write_tiny
from tests.helpers.command_line import InProcessShell
from trnflow.flows.champions.contenders import Contender
from trnflow.flows.champions.forced import FLOW_RUN, force_by_hand
from trnflow.flows.champions.frozen_rows import Frozen
from trnflow.flows.champions.promote import Round, _Judging, _Verdict
from trnflow.flows.champions.scoring import Scored, check_whole
from trnflow.flows.recipes.recipe import load
from trnflow.flows.runner.context import context_of
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.documents import RecordedStage
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.events import EventLog
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.ledger import append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import NewEntry

WHY = "June's labels are known to be wrong"
BOUND = "promote.at_least={f1_macro: 0.99}"


def entry(shell: InProcessShell) -> Any:
    return shell.json("history", "tiny")["history"][0]


@pytest.mark.slow
def test_a_forced_champion_is_shown_until_the_next_promotion_by_evidence(tiny: InProcessShell, tmp_path: Path) -> None:
    tiny.json("promote", "tiny.yaml")
    assert tiny.json("promote", "tiny.yaml", STRONG)["forced"] is None
    worse = tiny.json("promote", "tiny.yaml", "last~1", "--force", "--why", WHY, BOUND)
    forced = worse["forced"]
    assert worse["promoted"] and worse["number"] == 3 and worse["comparison"]["high"] < 0.2
    assert forced["why"] == WHY and "@" in forced["who"] and len(forced["broke"]) == 2
    assert forced["broke"][0].startswith("not surely better: f1_weighted ")
    assert forced["broke"][1].startswith(
        "promote bounds f1_macro, which the newest evaluation of the model does not have"
    )
    assert entry(tiny)["forced"] == forced and (entry(tiny)["outcome"], entry(tiny)["by"]) == ("promoted", "promote")
    (serves,) = (one["champion"] for one in tiny.json("health", "tiny")["recipes"])
    assert serves["forced"] == forced and serves["artifact"] == worse["challenger"]
    assert tiny.json("champions", "tiny")["champions"][0]["forced"] == forced

    def shown() -> dict[str, str]:
        """What each place says of the champion."""
        run = next(one["run"] for one in tiny.json("history", "tiny")["history"] if one["number"] == serves["number"])
        folder = tmp_path / f"published-{len([*tmp_path.iterdir()])}"
        tiny.json("publish", "tiny.yaml@champion", str(folder))
        return {
            "history": tiny("history", "tiny").stdout.splitlines()[0],
            "health": tiny("health", "tiny").stdout,
            "health's page": (tiny.folder / ".trnflow/reports/health.html").read_text(),
            "page": Path(tiny.json("report", run)["path"]).read_text().replace("&#39;", "'"),
            "card": (folder / "README.md").read_text(),
        }

    for place, text in shown().items():
        assert WHY in text.replace("&#39;", "'") and "promote bounds f1_macro" in text, place
        assert (forced["who"] in text) == (place != "card"), "a card may be published"
    assert tiny.json("rollback", "tiny.yaml")["forced"] is None and WHY not in shown()["history"]
    again = tiny.json("promote", "tiny.yaml", "last~1", "--force", "--why", WHY, BOUND)
    spent = worse["comparison"]["spent"]
    assert again["comparison"]["spent"] == pytest.approx(spent), "no year begins anew, and a repeated look is free"
    evidence = tiny.json("promote", "tiny.yaml", STRONG, "--force", "--why", "not needed")
    assert evidence["promoted"] and evidence["forced"] is None
    assert evidence["notes"] == ["--force was not needed: this is a promotion by evidence"]
    serves["number"] = evidence["number"]
    for place in ("health", "card", "health's page"):
        assert WHY not in shown()[place].replace("&#39;", "'"), place
    assert not shown()["history"].startswith("note")


@pytest.mark.slow
def test_what_can_t_be_judged_can_be_forced_and_what_is_lost_can_not(tiny: InProcessShell) -> None:
    """The evaluation has no perplexity, so the bound is an error; by force it is what speaks against the model."""
    named, bound, by_force = "name=unjudged", "promote.at_most={perplexity: 9}", ("--force", "--why", WHY)
    tiny.json("promote", "tiny.yaml", named)
    assert "promote bounds perplexity" in tiny.error("promote", "tiny.yaml", STRONG, named, bound, code=2)
    forced = tiny.json("promote", "tiny.yaml", STRONG, named, bound, *by_force)
    (broken,) = forced["forced"]["broke"]
    assert forced["promoted"] and forced["comparison"]["is_better"] and broken.startswith("promote bounds perplexity")
    ledger = tiny.json("history", "unjudged")
    store = Store(str(tiny.folder / ".trnflow/store"), tiny.folder / ".trnflow")
    weak = store.artifact(tiny.json("champions", "unjudged")["champions"][1]["artifact"])
    (weights,) = (file for file in weak.files if file.path == "model.safetensors")
    lost = tiny.folder / ".trnflow/store" / blob_name(weights.digest)
    kept = lost.read_bytes()
    lost.unlink()
    assert "the store has lost model.safetensors" in tiny.error(
        "promote", "tiny.yaml", weak.digest, named, *by_force, code=1
    )
    lost.write_bytes(kept)
    assert tiny.json("history", "unjudged") == ledger


def test_force_needs_a_reason_and_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = InProcessShell(write_tiny(tmp_path))
    assert "--force needs a reason" in shell.error("promote", "tiny.yaml", "last", "--force", code=2)
    assert "--force needs a reason" in shell.error("promote", "tiny.yaml", "last", "--force", "--why", " ", code=2)
    assert "--why is the reason for --force" in shell.error("promote", "tiny.yaml", "last", "--why", "x", code=2)
    assert "promote.force is not a setting" in shell.error("retrain", "tiny.yaml", "promote.force=true", code=2)
    monkeypatch.setenv(FLOW_RUN, "0b3e")
    with pytest.raises(ConfigError, match="a flow run of Prefect can't force"):
        force_by_hand("by a schedule")


def test_entries_of_earlier_versions_have_neither_settings_nor_force(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), tmp_path)
    assert append_ledger(store, "tiny", NewEntry(outcome="promoted", by="promote", why="", champion="c"), 0) is not None
    file = tmp_path / "store/roots/ledger/tiny/1.json"
    document = json.loads(file.read_text())
    file.chmod(0o644)
    file.write_text(json.dumps({name: value for name, value in document.items() if name not in ("settings", "forced")}))
    champion = read_ledger(store, "tiny").champion
    assert champion is not None and champion["settings"] is None and champion["forced"] is None


def judging(store: Store, training: Round | None, *overrides: str) -> _Judging:
    """The judgement of the model "c" for a recipe whose champions were "a", then "b"."""
    for number, champion in enumerate("ab"):
        new = NewEntry(outcome="promoted", by="promote", why="", champion=champion)
        assert append_ledger(store, "tiny", new, number) is not None
        made = RecordedStage(stage="consolidate", action="ran", why="", key="k", artifact=champion, seconds=1.0)
        run = f"2026010{number + 1}T000000Z-{champion}"
        store.write_run(run, {"run": run, "stages": [made], "resolved": {}})
    challenger = Contender(Artifact("c", "model", {"task": "classification"}, ()), {}, None, ())
    frozen = Frozen(1, Artifact("f", "frozen", {"rows": 9}, ()))
    context = context_of(load("demo", ["name=tiny", *overrides]), store)
    return _Judging(context, challenger, EventLog(), frozen, False, training, None)


def test_a_promotion_replaces_the_present_champion_and_gc_keeps_what_was_judged(store: Store) -> None:
    own = judging(store, Round("round", "data", [], lambda: None))
    ledger = read_ledger(store, "tiny")
    won, lost = (own._new_entry(ledger, _Verdict(promoted, "")) for promoted in (True, False))
    assert (won["outcome"], won["champion"], won["replaces"]) == ("promoted", "c", "b")
    assert (lost["outcome"], lost.get("champion"), lost.get("replaces")) == ("kept", None, None)
    assert won["judged"] == [{"run": "round", "model": "c"}]
    assert lost["judged"] == [*won["judged"], {"run": "20260102T000000Z-b", "model": "b"}], "the present champion, too"


def test_bounds_refuse_a_challenger_that_no_check_refused(store: Store) -> None:
    own = judging(store, None, "promote.at_least={f1_macro: 0.5}")
    meta = {"task": "classification", "split": "test", "metrics": {"f1_macro": 0.4}}
    (store.home / "made").mkdir(parents=True)
    evaluation = store.ingest(store.home / "made", "evaluation", meta, cache=False).digest
    scored, better = Scored(own.frozen.artifact, "k"), _Verdict(True, "better")
    own.challenger = replace(own.challenger, evaluation=evaluation)
    found = own._checked(better, scored, None)
    assert not found.promoted and found.broke == ("f1_macro is 0.4, below 0.5",)
    assert found.why == "refused by promote.at_least and promote.at_most: f1_macro is 0.4, below 0.5"
    own.context = replace(own.context, recipe=load("demo", ["promote.at_least={f1_macro: 0.3}"]))
    assert own._checked(better, scored, None) == better


def test_a_model_of_which_a_file_is_lost_is_named(store: Store) -> None:
    folder = store.home / "made"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text("weights")
    model = Contender(store.ingest(folder, "model", {}, cache=False), {}, None, ())
    check_whole(store, model)
    Path(store.root, blob_name(model.artifact.files[0].digest)).unlink()
    with pytest.raises(BlobLost, match="the store has lost model.safetensors of the model"):
        check_whole(store, model)
