"""When a retrain goes round once more: its rounds and its looks at the source are given, nothing is trained."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.runs import context
from tests.helpers.stores import new_store
from trnflow.flows.cli.model import retrain_command
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.retraining import retrain as retraining
from trnflow.flows.retraining.ended import newest_ended
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import context_of, open_store
from trnflow.tasks.errors import ConfigError, DataError, Interrupted
from trnflow.tasks.events import EventLog, Reader
from trnflow.tasks.store.ledger import read_ledger

PROMOTED = Retrained("tiny", "r1", True, "the first champion", promoted=True, challenger="m1")
KEPT = Retrained("tiny", "r2", True, "not surely better", challenger="m2")
FAILED = Retrained("tiny", None, True, "broken", error=DataError("broken", "mend it"))
STOPPED = Retrained("tiny", None, True, "the check rows found 0.5", stopped=True)
CANCELLED = Retrained("tiny", "r3", True, "interrupted", error=Interrupted("interrupted", "again"))
LOST = Retrained("tiny", "r2", False, "another retrain of tiny took over")


@pytest.fixture
def outcome_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Retrain with given rounds. data: the source at each look; changes: whether each plan finds a change, or its error."""
    write_tiny(tmp_path)
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    recipe = settings.load(str(tmp_path / "tiny.yaml"))
    store = open_store(recipe)
    store.prepare()

    def outcome(
        rounds: list[Retrained], data: list[str], changes: list[bool | Exception], change: Any = None
    ) -> tuple[Retrained, Any]:
        left, looks, plans = list(rounds), list(data), list(changes)

        def find_change(*_: object, **__: object) -> object:
            found = plans.pop(0)
            if isinstance(found, Exception):
                raise found
            nothing = {
                "frozen": None,
                "champion": None,
                "challenger": None,
                "recipe": recipe,
                "why": "the same",
                "ledger": 0,
            }
            return SimpleNamespace(is_changed=found, data=looks[0], **nothing)

        monkeypatch.setattr(retraining, "find_change", find_change)
        monkeypatch.setattr(retraining, "present_data", lambda *_, **__: looks.pop(0) and looks[0])
        monkeypatch.setattr(retraining, "train_and_judge", lambda *_: left.pop(0))
        train = lambda *_: pytest.fail("it is not trained")  # noqa: E731
        done = retraining.retrain(context_of(recipe, store), EventLog(), train, change=change)
        assert not left and not plans
        return done, newest_ended(store, "tiny")

    return outcome


def test_an_unchanged_source_is_looked_at_once(outcome_of: Any) -> None:
    done, record = outcome_of([PROMOTED], ["a", "a"], [True])
    assert done == PROMOTED and (record.outcome, record.data) == ("promoted", "a")


def test_both_models_that_were_judged_are_told(outcome_of: Any) -> None:
    done, record = outcome_of([PROMOTED, KEPT], ["a", "b", "b"], [True, True])
    assert done.outcome == "kept" and done.run == "r2" and done.earlier == PROMOTED
    assert done.notes == ("the data changed meanwhile: a first round ended as promoted (the first champion)",)
    assert (record.outcome, record.data, record.settled) == ("kept", "b", "b")


def test_a_source_that_goes_on_changing_is_left_to_the_next_retrain(outcome_of: Any) -> None:
    done, record = outcome_of([STOPPED, KEPT], ["a", "b", "c"], [True, True])
    assert done.earlier is None and "the data changed once more" in done.notes[-1]
    assert record.settled == "b"


def test_a_file_that_was_half_written_is_read_again(outcome_of: Any) -> None:
    done, record = outcome_of([FAILED, PROMOTED], ["a", "b", "b"], [True, True])
    assert done.outcome == "promoted" and done.error is None and record.failures == 0


def test_a_round_that_read_the_new_data_already_is_enough(outcome_of: Any) -> None:
    done, record = outcome_of([PROMOTED], ["a", "b"], [True, False])
    assert done == PROMOTED and (record.outcome, record.data, record.settled) == ("unchanged", "b", "b")


def test_a_source_that_is_gone_then_is_said(outcome_of: Any) -> None:
    done, record = outcome_of([PROMOTED], ["a", "b"], [True, ConfigError("there is no data at rows", "mend it")])
    assert done.outcome == "promoted" and "there is no data at rows" in done.notes[-1] and record.data == "a"


def test_an_interrupted_round_and_a_lost_lease_end_it(outcome_of: Any) -> None:
    done, record = outcome_of([CANCELLED], ["a", "b"], [True])
    assert done == CANCELLED and record is None
    done, record = outcome_of([PROMOTED, LOST], ["a", "b", "b"], [True, True])
    assert done.promoted and LOST.why in done.notes and (record.outcome, record.data) == ("promoted", "a")


def test_a_defect_of_the_program_counts_as_a_failure_and_is_raised(
    outcome_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        outcome_of([], ["a", "a"], [ZeroDivisionError("defect")])
    newest = read_ledger(open_store(settings.load(str(tmp_path / "tiny.yaml"))), "tiny").newest
    assert newest is not None and (newest["outcome"], newest["stands"]["failures"]) == ("failed", 1)
    assert "ZeroDivisionError" in newest["why"] and (newest["error"] or {})["message"] == newest["why"]


def test_a_finding_of_before_the_ledger_s_last_entry_is_found_anew(outcome_of: Any) -> None:
    stale = SimpleNamespace(is_changed=True, data="a", ledger=7, why="new rows")
    done, record = outcome_of([], ["a", "a"], [False], stale)
    assert not done.changed and (record.outcome, record.data) == ("unchanged", "a")


@pytest.mark.parametrize("wait", [False, True])
def test_the_command_waits_for_another_retrain_if_it_is_told_to(
    wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(retraining, "retrain", lambda context, log, train, **more: given.update(more) or KEPT)
    options, change = Namespace(offline=False, wait=wait), SimpleNamespace(is_changed=True)
    done = retrain_command._directly(options, context(new_store(tmp_path)), change, Reader())  # type: ignore[arg-type]
    assert done == KEPT and given == {"wait": wait, "change": change}
