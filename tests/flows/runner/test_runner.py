"""The runner and the plan, on a toy pipeline: words -> sizes -> count, with warm_up wanted only when count runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.runner.toy import CountConfig, WordsConfig, pipeline
from trnflow.flows.runner.call import Stop
from trnflow.flows.runner.planning.planner import Planner
from trnflow.flows.runner.runner import Runner
from trnflow.tasks.errors import BlobLost, DataError, TrnflowError
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.store import Store


class House:
    """A store, a home and a file of words."""

    def __init__(self, folder: Path, root: str | None = None) -> None:
        self.folder = folder
        self.root = root or str(folder / "store")
        self.text = folder / "words.txt"
        self.text.write_text("a bb ccc")
        self.store().prepare()

    def store(self) -> Store:
        return Store(self.root, self.folder / "home")

    def run(
        self, *, lost: set[str] | None = None, force: str = "", until: str | None = None, **settings: object
    ) -> Runner:
        store = self.store()
        force_set = frozenset({force} - {""})
        runner = Runner(store, Resolver(store.home), run="r1", min_free_gb=0.0, force=force_set, until=until)
        runner.executor.lost |= lost or set()
        pipeline(WordsConfig(path=str(self.text), **self.first(settings)), CountConfig(**settings), runner)
        return runner

    def plan(self, **settings: object) -> dict[str, str]:
        store = self.store()
        planner = Planner(store, Resolver(store.home, offline=True))
        pipeline(WordsConfig(path=str(self.text), **self.first(settings)), CountConfig(**settings), planner)
        self.why = {name: outcome.why for name, outcome in planner.outcomes.items()}
        return {name: outcome.action for name, outcome in planner.outcomes.items()}

    @staticmethod
    def first(settings: dict[str, object]) -> dict[str, object]:
        return {"upper": settings.pop("upper")} if "upper" in settings else {}


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def actions(runner: Runner) -> dict[str, str]:
    return {name: outcome.action for name, outcome in runner.outcomes.items()}


def test_the_first_run_runs_and_the_second_hits(house: House) -> None:
    assert house.plan() == {"words": "run", "sizes": "maybe", "warm_up": "maybe", "count": "maybe"}
    first = house.run()
    assert actions(first) == {"words": "ran", "sizes": "ran", "warm_up": "ran", "count": "ran"}
    assert first.outcomes["count"].metrics == {"total": 6}
    second = house.run()
    assert actions(second) == {"words": "hit", "sizes": "hit", "count": "hit"}
    assert [outcome.action for outcome in second.skipped()] == ["hit"]
    assert second.outcomes["words"].figures == first.outcomes["words"].figures
    assert house.plan() == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "hit"}
    assert not list((house.folder / "home" / "work").iterdir())


def test_a_changed_setting_reruns_its_stage_and_says_so(house: House) -> None:
    house.run()
    assert house.plan(least=2) == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "run"}
    assert house.why["count"] == "params.least: 1 -> 2"
    assert actions(house.run(least=2)) == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "ran"}


def test_equal_output_stops_the_rerun(house: House) -> None:
    house.run()
    # other words of the same lengths: sizes runs, its output is equal, count hits, and warm_up is not wanted
    house.text.write_text("x yy zzz")
    runner = house.run()
    assert actions(runner) == {"words": "ran", "sizes": "ran", "count": "hit"}
    assert [outcome.action for outcome in runner.skipped()] == ["skip"]
    assert house.plan() == {"words": "hit", "sizes": "hit", "warm_up": "skip", "count": "hit"}


def test_a_path_or_an_unkeyed_setting_changes_nothing(house: House) -> None:
    house.run()
    moved = house.folder / "moved.txt"
    moved.write_text(house.text.read_text())
    house.text = moved
    assert set(house.plan(fail=True).values()) == {"hit"}


def test_a_failure_publishes_nothing_and_the_attempt_says_why(house: House) -> None:
    with pytest.raises(DataError, match="row 3") as caught:
        house.run(fail=True)
    assert caught.value.stage == "count"
    assert house.plan()["count"] == "run"
    attempts = list((house.folder / "store" / "attempts").rglob("*count*.json"))
    assert '"outcome": "failed"' in attempts[0].read_text()
    assert "row 3 is bad" in attempts[0].read_text()
    assert not list((house.folder / "home" / "work").iterdir())
    assert actions(house.run())["count"] == "ran"


def test_a_stage_that_changes_its_input_fails(house: House) -> None:
    with pytest.raises(DataError, match=r"changed its input sizes: sizes\.txt"):
        house.run(spoil_input=True)
    assert house.plan()["sizes"] == "run"
    assert house.run().outcomes["count"].metrics == {"total": 6}


def test_until_stops_after_the_stage_even_a_deferred_one(house: House) -> None:
    for until, last in (("words", ["words"]), ("warm_up", ["words", "sizes", "warm_up"])):
        store = house.store()
        runner = Runner(store, Resolver(store.home), run="r", until=until)
        with pytest.raises(Stop):
            pipeline(WordsConfig(path=str(house.text)), CountConfig(), runner)
        assert list(runner.outcomes) == last


def test_force_runs_a_stage_that_hits(house: House) -> None:
    house.run()
    assert actions(house.run(force="sizes")) == {"words": "hit", "sizes": "ran", "count": "hit"}


def test_a_deleted_blob_makes_a_miss_that_heals(house: House) -> None:
    digest = house.run().outcomes["sizes"].artifact.files[0].digest.removeprefix("sha256:")
    (house.folder / "store/blobs/sha256" / digest[:2] / digest).unlink()
    assert house.plan() == {"words": "hit", "sizes": "run", "warm_up": "hit", "count": "maybe"}
    assert house.why["sizes"] == (
        f"its artifact is damaged or gone: the blob of sizes.txt (sha256:{digest}) is missing or damaged"
    )
    assert actions(house.run()) == {"words": "hit", "sizes": "ran", "count": "hit"}
    assert set(house.plan().values()) == {"hit"}


def test_a_corrupt_blob_is_found_at_first_use_and_its_stage_runs_again(house: House) -> None:
    digest = house.run().outcomes["sizes"].artifact.files[0].digest
    blob = house.folder / "store/blobs/sha256" / digest[7:9] / digest[7:]
    blob.chmod(0o644)
    blob.write_text("9 9 9")
    (house.folder / "home/memo.db").unlink()  # as on a machine that never read it: of one that did, test_upkeep tells
    with pytest.raises(BlobLost) as caught:
        house.run(least=2)
    assert caught.value.digest == digest
    assert actions(house.run(lost={digest}, least=2))["sizes"] == "ran"
    assert house.run(least=2).outcomes["count"].metrics == {"total": 5}


def test_a_run_with_another_process_folder_left_behind_cleans_it(house: House) -> None:
    litter = house.folder / "home" / "work" / "999999999-dead"
    litter.mkdir(parents=True)
    house.run()
    assert not litter.exists()


def test_the_pipeline_runs_the_same_on_a_memory_store(tmp_path: Path) -> None:
    house = House(tmp_path, "memory://runner-test")
    house.run()
    assert set(actions(house.run()).values()) == {"hit"}


def test_errors_name_the_stage_they_belong_to() -> None:
    assert issubclass(BlobLost, TrnflowError)
    assert BlobLost("x").exit_code == 1
