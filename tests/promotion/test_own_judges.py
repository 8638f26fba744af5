"""What the user's own metrics and checks read of two models: values in the order of the frozen rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data.format.templates import no_limit
from trnflow.tasks.promotion import own_judges
from trnflow.tasks.promotion.own_judges import CheckModelsConfig, CompareConfig, check_models, compare_models
from trnflow.tasks.stage import Workdir

FUNCTIONS = """
import json

def cost(p):
    return float(p.columns["amount"][p.expected != p.predicted].sum()) / len(p)

def gain(p):
    return 10.0 - cost(p)

def tells(challenger, champion):
    return json.dumps([[p.predicted is not None and p.predicted.tolist(), p.probabilities.tolist()]
                       for p in (challenger, champion)])
"""
AMOUNTS = np.array([5.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0])


def scored(folder: Path, task: str, labels: list[str], **columns: Any) -> Input:
    """A model's scores, the last row first."""
    folder.mkdir()
    backwards = {name: list(values)[::-1] for name, values in columns.items()}
    rows = list(range(len(next(iter(backwards.values())))))[::-1]
    pq.write_table(pa.table({"row": rows, "frozen_row": rows, **backwards}), folder / "scores.parquet")
    return Input(folder, "scores", {"task": task, "labels": labels}, "sha256:scores")


def classes(folder: Path, *wrong: int) -> Input:
    said = ["b" if row in wrong else "a" for row in range(8)]
    return scored(folder, "classification", ["a", "b"], label=["a"] * 8, predicted=said, loss=np.arange(8.0))


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The frozen rows and the user's functions, called in this process."""
    (tmp_path / "frozen").mkdir()
    pq.write_table(pa.table({"amount": AMOUNTS}), tmp_path / "frozen/test.parquet")
    file = tmp_path / "own_judges_here.py"
    file.write_text(FUNCTIONS)
    functions = {name: f"own_judges_here:{name}" for name in ("cost", "gain", "tells")}
    place = {"functions": functions, "search": [str(tmp_path)], "files": {"own_judges_here": str(file)}}
    monkeypatch.delitem(sys.modules, "own_judges_here", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(function: str, arguments: Meta, *_: Any) -> Any:
        return getattr(own_judges, function.partition(":")[2])({**arguments, "elsewhere": False}, no_limit)

    for name in ("call_own", "called_twice"):
        monkeypatch.setattr(own_judges, name, call)
    frozen: Input = Input(tmp_path / "frozen", "frozen", {}, "sha256:frozen")
    return {"frozen": frozen, "code": Source("code", {"env": {}}, place)}


def comparison(given: dict[str, Any], folder: Path, metric: str, **more: Any) -> Meta:
    """The challenger is wrong in other rows than the champion, and in one row less."""
    folder.mkdir()
    sides = classes(folder / "champion", 0, 4, 5, 6), classes(folder / "challenger", 4, 5, 7)
    settings = {"margin": 0.0, "alpha": 0.1, "resamples": 100, "seed": 0, "less_is_better": False, **more}
    config = CompareConfig(setting=metric, metric=metric, **settings)
    out = Workdir(folder, folder / "scratch", lambda event: None)
    return compare_models(config, *sides, given["frozen"], given["code"], out)


def test_a_metric_reads_the_columns_of_its_own_rows_and_less_of_a_cost_is_better(given: Any, tmp_path: Path) -> None:
    cost = comparison(given, tmp_path / "less", "cost", less_is_better=True)
    gain = comparison(given, tmp_path / "more", "gain")
    assert (cost["champion"], cost["challenger"]) == ((5 + 2 + 1 + 1) / 8, (2 + 1 + 1) / 8)
    assert cost["difference"] == gain["difference"] == 5 / 8
    assert (cost["low"], cost["high"]) == (gain["low"], gain["high"])


def test_the_seed_of_the_recipe_draws_the_permutations(given: Any, tmp_path: Path) -> None:
    found = [comparison(given, tmp_path / f"{number}", "gain", seed=number // 2) for number in range(6)]
    ends = [(each["low"], each["high"]) for each in found]
    assert ends[::2] == ends[1::2] and len({*ends}) > 1


MARGINS = np.array([1.0, -2.0, 0.5])


@pytest.mark.parametrize(
    ("task", "columns", "read"),
    [
        (
            "multi_label",
            {"expected": [[1.0, 0.0]] * 3, "values": [[0.25, 0.0], [0.5, 1.0], [0.0, 0.75]],
             "decided": [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], "loss": [0.1] * 3},
            [[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], [[0.25, 0.0], [0.5, 1.0], [0.0, 0.75]]],
        ),
        (
            "preference",
            {"chosen": MARGINS, "rejected": -MARGINS, "likelier": MARGINS > 0, "loss": [0.1] * 3},
            [False, [[1.0, -1.0], [-2.0, 2.0], [0.5, -0.5]]],
        ),
    ],
)  # fmt: skip
def test_a_check_reads_what_is_decided_and_the_chosen_answer_first(
    given: Any, task: str, columns: dict[str, Any], read: Any, tmp_path: Path
) -> None:
    sides = [scored(tmp_path / "challenger", task, ["x", "y"], **columns)]
    sides.append(
        scored(tmp_path / "champion", task, ["x", "y"], **{name: value[:1] for name, value in columns.items()})
    )
    out = Workdir(tmp_path, tmp_path / "scratch", lambda event: None)
    config = CheckModelsConfig(settings=("tells",))
    (refusal,) = check_models(config, sides[0], given["frozen"], given["code"], sides[1], out=out)["refusals"]
    told = json.loads(refusal.removeprefix("tells: "))
    assert told == [read, [part and part[:1] for part in read]]
