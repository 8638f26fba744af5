"""Retention: gc keeps the last judged models and the champion's with all that their runs made, and removes older ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.champions.conftest import RECIPE
from tests.helpers.stores import new_store, recorded
from trnflow.flows.champions.contenders import judged_models
from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.store.ledger import append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import NewEntry
from trnflow.tasks.store.verify import verify

AT_ONCE = Policy(keep_last=0, grace=0.0)


class Shelf:
    """A store with a run, a model and its rows for each number."""

    def __init__(self, folder: Path, keep: int) -> None:
        (folder / "tiny.yaml").write_text(RECIPE)
        self.recipe = settings.load(str(folder / "tiny.yaml"), [f"promote.keep_models={keep}"])
        self.store = new_store(folder)
        self.folder = folder

    def artifact(self, kind: str, number: int) -> Artifact:
        made = self.folder / f"{kind} {number}"
        made.mkdir()
        (made / "x").write_text(f"{kind} {number}")
        return self.store.ingest(made, kind, {"number": number})

    def run(self, number: int) -> Artifact:
        rows, model = self.artifact("rows", number), self.artifact("model", number)
        made = {"load_data": rows, "consolidate": model}
        stages = [recorded(stage, None, one.digest) for stage, one in made.items()]
        document = {"run": f"r{number}", "recipe": "tiny", "outcome": "completed", "resolved": {}, "stages": stages}
        self.store.write_run(f"r{number}", document)
        return model

    def judge(self, number: int, model: Artifact, champion: Artifact) -> None:
        run, keep, ledger = f"r{number}", self.recipe.promote.keep_models, read_ledger(self.store, "tiny")
        models = judged_models(self.store, ledger, run, model.digest, champion.digest, keep)
        entry = NewEntry(outcome="kept", by="retrain", why="", run=run, challenger=model.digest, judged=models)
        assert append_ledger(self.store, "tiny", entry, ledger.number)

    def held(self) -> list[str]:
        """The runs that are left after garbage collection; each has all its files."""
        collect(self.store.backend, AT_ONCE, yes=True)
        assert verify(self.store.backend).ok
        names = {name.rsplit("/", 1)[1] for name in self.store.backend.names("blobs")}
        runs = [name.removeprefix("runs/").removesuffix(".json") for name in self.store.backend.names("runs")]
        for run in runs:
            digests = [stage["artifact"] for stage in (self.store.run(run) or {})["stages"]]
            files = [file.digest for digest in digests for file in self.store.artifact(digest).files]
            assert {digest[7:] for digest in (*digests, *files)} <= names
        return runs


@pytest.mark.parametrize(
    ("keep", "left"), [(1, ["r2", "r5"]), (2, ["r2", "r4", "r5"]), (9, ["r1", "r2", "r3", "r4", "r5"])]
)
def test_gc_keeps_the_last_models_and_the_champion_s(tmp_path: Path, keep: int, left: list[str]) -> None:
    shelf = Shelf(tmp_path, keep)
    models = {number: shelf.run(number) for number in range(1, 6)}
    for number in models:
        shelf.judge(number, models[number], champion=models[min(number, 2)])
    assert shelf.held() == left


def test_a_model_that_is_judged_again_counts_once(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 2)
    first, second = shelf.run(1), shelf.run(2)
    for number, model in ((1, first), (2, second), (1, first), (2, second)):
        shelf.judge(number, model, champion=first)
    assert shelf.held() == ["r1", "r2"]


def test_a_run_that_was_removed_by_hand_is_forgotten(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 3)
    first, second = shelf.run(1), shelf.run(2)
    shelf.judge(1, first, champion=first)
    shelf.store.backend.remove("runs/r1.json")
    shelf.judge(2, second, champion=first)
    assert read_ledger(shelf.store, "tiny").stands["judged"] == [{"run": "r2", "model": second.digest}]
    assert shelf.held() == ["r2"]
