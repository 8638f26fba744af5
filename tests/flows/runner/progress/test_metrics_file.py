"""What a stage says step by step is kept as lines of JSON, and says what it cost where the hardware has a price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.runner.toy import learn
from tests.helpers.runs import context, run_stage
from trnflow.tasks.config import StageConfig
from trnflow.tasks.store import Store


def lines(folder: Path, price: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(the lines that a run of `learn` left, its figures)"""
    store = Store(str(folder / "store"), folder / "home")
    store.prepare()
    step = run_stage(learn, StageConfig(), context(store, run="r1", settings=[f"hardware.price_per_hour={price}"]))
    (file,) = (store.home / "logs").glob("*r1-learn-*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()], step.figures


def test_each_step_is_a_line(tmp_path: Path) -> None:
    said, figures = lines(tmp_path, price=0.0)
    assert [(one["stage"], one["step"], one["values"]) for one in said] == [
        ("learn", 1, {"loss": 1.0}), ("learn", 2, {"loss": 0.5}), ("learn", 3, {"loss": pytest.approx(1 / 3)}),
    ]  # fmt: skip
    assert said[0]["time"] <= said[1]["time"] <= said[2]["time"]
    assert figures == {"steps": 3}, "what has no price costs nothing, and says so by silence"


def test_dollars_grow_with_the_hours(tmp_path: Path) -> None:
    said, figures = lines(tmp_path, price=3.6e9)  # a million a second
    dollars = [one["values"]["dollars"] for one in said]
    assert 0 < dollars[0] <= dollars[1] <= dollars[2] <= figures["dollars"]
