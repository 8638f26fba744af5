"""The runner and the plan, on a toy pipeline: words -> sizes -> count, with warm_up wanted only when count runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.runner.toy import CountConfig, WordsConfig, graph, letters
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from tests.helpers.runs import Ran, context, plan_graph, run_graph
from tests.helpers.stores import recorded
from trnflow.flows.runner.attempts import outlook
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.plan import Options, Step
from trnflow.flows.runner.run import run
from trnflow.flows.runner.stored import Stored
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import BlobLost, DataError, StoreError, TrnflowError
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Lease, LeaseLost


class House:
    def __init__(self, folder: Path, root: str | None = None) -> None:
        self.folder = folder
        self.root = root or str(folder / "store")
        self.text = folder / "words.txt"
        self.text.write_text("a bb ccc")
        self.store().prepare()

    def store(self) -> Store:
        return Store(self.root, self.folder / "home")

    def run(self, *, force: str = "", until: str | None = None, **settings: object) -> Ran:
        return run_graph(self.graph(settings), context(self.store()), until=until, force={force} - {""})

    def plan(self, **settings: object) -> dict[str, str]:
        plan = plan_graph(self.graph(settings), self.store())
        self.why = {name: step.why for name, step in plan.steps.items()}
        return {name: step.action for name, step in plan.steps.items()}

    def graph(self, settings: dict[str, object]) -> Graph:
        return graph(WordsConfig(path=str(self.text), **self.first(settings)), CountConfig(**settings))

    @staticmethod
    def first(settings: dict[str, object]) -> dict[str, object]:
        return {"upper": settings.pop("upper")} if "upper" in settings else {}


@pytest.fixture
def house(tmp_path: Path, inline_calls: None) -> House:  # noqa: F811
    return House(tmp_path)


def test_an_input_of_which_the_metadata_is_read_has_no_files(tmp_path: Path) -> None:
    house = House(tmp_path)
    words = house.graph({}).nodes[0]
    counted = Graph((words, Node(letters, StageConfig(), {"words": words})))
    assert run_graph(counted, context(house.store())).steps["letters"].metrics == {"letters": 8, "files": 0}


def test_the_first_run_runs_and_the_second_hits(tmp_path: Path) -> None:
    """In processes; the tests below run the stages in this one."""
    house = House(tmp_path)
    assert house.plan() == {"words": "run", "sizes": "maybe", "warm_up": "maybe", "count": "maybe"}
    first = house.run()
    assert first.actions == {"words": "ran", "sizes": "ran", "warm_up": "ran", "count": "ran"}
    assert first.steps["count"].metrics == {"total": 6}
    second = house.run()
    assert second.actions == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "hit"}
    assert second.steps["words"].figures == first.steps["words"].figures
    assert house.plan() == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "hit"}
    assert not list((house.folder / "home" / "work").iterdir())


def test_a_changed_setting_reruns_its_stage_and_says_so(house: House) -> None:
    house.run()
    assert house.plan(least=2) == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "run"}
    assert house.why["count"] == "params.least: 1 -> 2"
    assert house.run(least=2).actions == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "ran"}


def test_equal_output_stops_the_rerun(house: House) -> None:
    house.run()
    # other words of the same lengths: sizes runs, its output is equal, count hits, and warm_up is not wanted
    house.text.write_text("x yy zzz")
    assert house.run().actions == {"words": "ran", "sizes": "ran", "warm_up": "skip", "count": "hit"}
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
    assert house.run().actions["count"] == "ran"


def test_the_journal_of_a_failure_hides_secrets(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Store, *arguments: object) -> None:
        raise StoreError("https://ann:pa55word@store.example does not answer")

    monkeypatch.setattr(Store, "ingest", refuse)
    with pytest.raises(StoreError):
        house.run()
    (attempt,) = (house.folder / "store" / "attempts").rglob("*.json")
    assert "does not answer" in attempt.read_text() and "pa55word" not in attempt.read_text()


def test_partial_state_goes_when_its_stage_is_done(house: House) -> None:
    key = plan_graph(house.graph({}), house.store()).steps["words"].key
    assert key is not None
    (house.folder / "state").mkdir()
    (house.folder / "state/weights").write_text("1")
    house.store().partial(key).commit(7, house.folder / "state")
    house.run(until="words")
    assert house.store().partial(key).steps() == []


def test_an_unfinished_stage_is_said_to_go_on_from_its_newest_state(house: House) -> None:
    step = plan_graph(house.graph({}), house.store()).steps["words"]
    assert step.key is not None and step.document is not None
    for at in (4, 12):
        (state := house.folder / "state").mkdir()
        (state / "weights").write_text("1")
        house.store().partial(step.key).commit(at, state)
    said = outlook(house.store(), "words", step.key, step.document, lambda record, changes: [])
    assert said == "goes on from step 12"


def test_reasons_are_against_what_the_recipe_itself_made_or_found(house: House) -> None:
    key = house.run().steps["words"].key

    def why(recipe: str) -> str:
        plan = plan_graph(house.graph({"upper": True}), house.store())
        plan.recipe = recipe
        plan.predict()
        return plan.steps["words"].why

    since = "params.upper: False -> True"
    assert (why("toy"), why("other")) == (since, "never ran for other")
    house.store().write_run(
        "20260101T000000Z-000000", {"recipe": "other", "stages": [recorded("words", key, None, "hit")]}
    )
    assert why("other") == since, "it has found it"


def test_what_another_recipe_left_unfinished_is_no_reason(house: House) -> None:
    store, step = house.store(), plan_graph(house.graph({}), house.store()).steps["words"]
    assert step.key is not None and step.document is not None
    (state := house.folder / "state").mkdir()
    (state / "weights").write_text("1")
    store.partial("other").commit(4, state)
    store.write_attempt("other", "a", {"stage": "words", "recipe": "other", "document": step.document})

    def told(recipe: str) -> str:
        assert step.key is not None and step.document is not None
        return outlook(store, "words", step.key, step.document, lambda record, changes: ["lines"], recipe)

    assert told("mine") == ""
    assert told("other") == told("") == "starts from zero: the unfinished one differs in lines"


def test_a_stage_that_changes_its_input_fails(house: House) -> None:
    with pytest.raises(DataError, match=r"changed its input sizes: sizes\.txt"):
        house.run(spoil_input=True)
    assert house.plan()["sizes"] == "run"
    assert house.run().steps["count"].metrics == {"total": 6}


def test_a_stage_whose_lease_was_lost_publishes_nothing_until_its_turn_comes_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bool] = []

    def check(self: Lease) -> None:
        looked.append(house.plan()["words"] == "run")  # nothing is on record
        if len(looked) == 1:
            raise LeaseLost("another process took over")

    monkeypatch.setattr(Lease, "check", check)
    assert house.run(until="words").actions["words"] == "ran"
    assert looked == [True, True]


def test_what_a_stage_is_made_of_stays_while_it_runs(house: House) -> None:
    """gc keeps what the journals of living attempts hold."""
    ran = house.run()
    store = house.store()
    record = store.record("count", str(ran.steps["count"].key))
    assert record is not None
    held = {each["stage"]: each["key"] for each in store.attempt(record["key"], record["attempt"])["holds"]}
    assert held.items() >= {name: ran.steps[name].key for name in ("words", "sizes")}.items()


def test_until_stops_after_the_stage_even_a_deferred_one(house: House) -> None:
    for until, last in (("words", ["words"]), ("warm_up", ["words", "sizes", "warm_up"])):
        assert list(house.run(until=until).steps) == last


def test_force_runs_a_stage_that_hits(house: House) -> None:
    house.run()
    assert house.run(force="sizes").actions == {"words": "hit", "sizes": "ran", "warm_up": "hit", "count": "hit"}


def test_a_deleted_blob_makes_a_miss_that_heals(house: House) -> None:
    digest = house.run().steps["sizes"].artifact.files[0].digest.removeprefix("sha256:")
    (house.folder / "store/blobs/sha256" / digest[:2] / digest).unlink()
    assert house.plan() == {"words": "hit", "sizes": "run", "warm_up": "hit", "count": "maybe"}
    assert house.why["sizes"] == (
        f"its artifact is damaged or gone: the blob of sizes.txt (sha256:{digest}) is missing or damaged"
    )
    assert house.run().actions == {"words": "hit", "sizes": "ran", "warm_up": "hit", "count": "hit"}
    assert set(house.plan().values()) == {"hit"}


def test_a_corrupt_blob_is_found_at_first_use_and_its_stage_runs_again(house: House) -> None:
    digest = house.run().steps["sizes"].artifact.files[0].digest
    blob = house.folder / "store/blobs/sha256" / digest[7:9] / digest[7:]
    blob.chmod(0o644)
    blob.write_text("9 9 9")
    (house.folder / "home/memo.db").unlink()  # as on a machine that never read it: of one that did, test_upkeep tells
    ran = house.run(least=2)
    assert ran.actions["sizes"] == "ran" and ran.steps["count"].metrics == {"total": 5}
    assert digest in ran.notes[0] and ran.notes[0].endswith("; made anew")


def test_what_is_forced_is_forced_once_also_where_a_blob_is_made_anew(house: House) -> None:
    begun: list[str] = []

    class Begun(Reader):
        def read(self, event: Event, state: RunState) -> None:
            begun.extend([event["stage"]] if event["event"] == "stage_begun" else [])

    digest = house.run().steps["sizes"].artifact.files[0].digest
    blob = house.folder / "store/blobs/sha256" / digest[7:9] / digest[7:]
    blob.chmod(0o644)
    blob.write_text("9 9 9")
    (house.folder / "home/memo.db").unlink()
    run_graph(house.graph({"least": 2}), context(house.store(), Begun()), force={"words"})
    assert begun == ["words", "count", "sizes", "count"]


def test_a_run_with_another_process_folder_left_behind_cleans_it(house: House) -> None:
    litter = house.folder / "home" / "work" / "999999999-dead"
    litter.mkdir(parents=True)
    house.run()
    assert not litter.exists()


def test_the_pipeline_runs_the_same_on_a_memory_store(tmp_path: Path) -> None:
    house = House(tmp_path, "memory://runner-test")
    house.run()
    assert set(house.run().actions.values()) == {"hit"}


def test_errors_name_the_stage_they_belong_to() -> None:
    assert issubclass(BlobLost, TrnflowError)
    assert BlobLost("x").exit_code == 1


def test_a_failure_is_that_of_its_own_stage_alone(house: House) -> None:
    """warm_up runs only for count, which has not failed."""
    failed: list[str] = []

    class Failures(Reader):
        def read(self, event: Event, state: RunState) -> None:
            failed.extend([event["stage"]] if event["event"] == "stage_failed" else [])

    def around(step: Step, result: Callable[[], Stored]) -> Stored:
        if step.name == "warm_up":
            raise DataError("it is cold", "warm it")
        return result()

    result = run(house.graph({}), context(house.store(), Failures()), Options(record=False), around=around)
    assert result.error is not None and result.error.stage == "warm_up" and failed == ["warm_up"]
