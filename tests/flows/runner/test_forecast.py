"""What `plan` expects of a stage: the figures of the past attempt that was most like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows.runner.toy import CountConfig, WordsConfig, graph
from tests.helpers.runs import context, plan_graph, run_graph, step
from tests.helpers.stores import new_store
from trnflow.flows.display import report
from trnflow.flows.runner.forecast import total
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.plan import Step


class House:
    """A store in which each run of `count` is said to have taken the seconds it is given."""

    def __init__(self, folder: Path) -> None:
        self.store = new_store(folder)
        self.text = folder / "words.txt"

    def run(self, text: str, least: int, seconds: float) -> int:
        """Bytes of what `count` made."""
        outcome = run_graph(self.graph(text, least), context(self.store, run=f"r{seconds}")).steps["count"]
        assert outcome.key and outcome.artifact
        record = self.store.record("count", outcome.key)
        assert record
        journal = self.store.attempt(outcome.key, record["attempt"])
        self.store.write_attempt(outcome.key, record["attempt"], journal | {"seconds": seconds})
        return outcome.artifact.size

    def expected(self, text: str, least: int) -> Step:
        return plan_graph(self.graph(text, least), self.store).steps["count"]

    def graph(self, text: str, least: int) -> Graph:
        self.text.write_text(text)
        return graph(WordsConfig(path=str(self.text)), CountConfig(least=least))


@pytest.fixture
def house(tmp_path: Path) -> House:
    house = House(tmp_path)
    house.run("a bb ccc", least=1, seconds=100.0)
    house.run("aaaaa bbbbbb ccccccc", least=2, seconds=200.0)
    return house


def test_of_all_past_attempts_the_most_alike_tells(house: House) -> None:
    for text, told in (("a bb ccc", 100.0), ("aaaaa bbbbbb ccccccc", 200.0)):
        outcome = house.expected(text, least=3)
        assert (outcome.action, outcome.seconds, outcome.bytes) == ("run", told, len("6") + (told == 200.0))


def test_of_a_stage_whose_inputs_are_not_known_the_settings_tell(house: House) -> None:
    for least, told in ((1, 100.0), (2, 200.0)):
        outcome = house.expected("other words", least)
        assert (outcome.action, outcome.seconds) == ("maybe", told)


def test_what_never_ran_is_unknown_and_named(tmp_path: Path) -> None:
    outcome = House(tmp_path).expected("a", least=1)
    assert (outcome.seconds, outcome.bytes) == (None, None)
    assert total([outcome.to_json()], 1.0) == {"seconds": 0.0, "bytes": 0, "dollars": 0.0, "unknown": ["count"]}


def test_hits_and_skips_are_in_no_sum_and_dollars_need_a_price() -> None:
    outcomes = [
        step("load_data", "hit", seconds=5.0, expected_bytes=7),
        step("precompile", "skip", seconds=5.0, expected_bytes=7),
        step("train", "run", seconds=1800.0, expected_bytes=2_500_000_000),
        step("consolidate", "maybe", seconds=900.0, expected_bytes=500),
    ]
    found = total((outcome.to_json() for outcome in outcomes), 8.0)
    assert found == {"seconds": 2700.0, "bytes": 2_500_000_500, "dollars": 6.0, "unknown": []}
    rows: dict[str, Any] = {line.split()[0]: line.split() for line in report.plan_table(outcomes, 8.0)}
    assert rows["train"][2:6] == ["1800", "2.5", "GB", "4.00"]
    assert rows["total"][1:5] == ["2700", "2.5", "GB", "6.00"]
    assert rows["load_data"] == ["load_data", "hit"]
    assert "dollars" not in report.plan_table(outcomes)[0]


def test_a_stage_that_took_no_time_is_known() -> None:
    assert total([step("load_data", "run", seconds=0.0, expected_bytes=1).to_json()], 1.0)["unknown"] == []
