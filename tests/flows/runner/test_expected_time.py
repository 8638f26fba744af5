"""A first run's time is estimated before anything has run: its rows as the stages find them, its seconds as measured."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.helpers.command_line import InProcessShell
from tests.training.toys import minilm
from trnflow.flows.finetune import finetune
from trnflow.flows.runner import expected_time
from trnflow.flows.runner.context import RunContext, make_plan, open_context
from trnflow.flows.runner.expected_time import expect_training, spoken

ON = ("tracking.enabled=false", "hardware.name=here", "train.device=cpu", "train.engine=native")


@pytest.fixture
def house(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> InProcessShell:
    """A folder with 1,000 real rows of six classes, and the recipe that `new` writes for them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    rows = pq.read_table(shared / "data/emotion/train.parquet").slice(0, 1000).to_pylist()
    with Path("rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("text", "label"), *((row["text"], row["label_name"]) for row in rows)])
    shell = InProcessShell(tmp_path)
    shell.environ["TRNFLOW_HOME"] = str(tmp_path / "home")
    written = shell("new", "rows.csv", f"model.source={minilm()}")
    assert written.returncode == 0, written.stderr
    return shell


def planned(*overrides: str) -> RunContext:
    context = open_context("rows.yaml", [*ON, *overrides])
    context.plan = make_plan(finetune(context.recipe), context)
    return context


def expected(*overrides: str) -> str:
    context = planned(*overrides)
    assert context.plan is not None
    return expect_training(context.recipe, context.plan)


@pytest.mark.parametrize("strategy", ["bucket", "pad"])
def test_rows_and_tokens_are_those_that_the_stages_find(house: InProcessShell, strategy: str) -> None:
    """Within a tenth: by the bytes of the whole file, and of its first half as if the rest were not read."""
    pack = f"pack.strategy={strategy}"
    context = planned(pack)
    assert context.plan is not None
    guess = expected_time._in_files(context.recipe, context.plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected_time, "BYTES", 0)  # one batch of rows is read
        part = expected_time._in_files(context.recipe, context.plan)
    assert house("run", "rows.yaml", *ON, pack, "--direct", "--until", "pack_chunks").returncode == 0
    context = planned(pack)
    assert context.plan is not None
    real = expected_time._packed(context.plan)
    assert guess is not None and part is not None and real is not None
    assert real.outputs == guess.outputs == 6
    for each in (guess, part):
        assert each.rows == pytest.approx(real.rows, rel=0.1)
        assert each.positions == pytest.approx(real.positions, rel=0.1)


def test_what_nothing_tells_is_not_estimated(house: InProcessShell, tmp_path: Path) -> None:
    assert expected().startswith("train takes about ")
    for unknown in (("train.dtype=bfloat16",), ("train.device=cuda",)):
        assert expected(*unknown) == ""
    rows = Path("rows.csv").read_bytes()
    Path("packed.csv.gz").write_bytes(gzip.compress(rows))
    assert expected("data.source=packed.csv.gz").startswith("train takes about ")  # all of it is read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected_time, "BYTES", 0)
        Path("packed.csv.gz").write_bytes(gzip.compress(rows + rows.partition(b"\n")[2] * 9))
        assert expected("data.source=packed.csv.gz") == ""
    with Path("rows.csv").open("ab") as file:
        file.write(b"\xff\xfe broken")
    assert expected() == ""  # load_data says what is wrong


def test_the_estimate_grows_with_what_costs_time(house: InProcessShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # a core's speed varies with the load on the machine: one speed for all
    monkeypatch.setattr(expected_time, "flops_per_second", lambda: 5e10)

    def seconds(*overrides: str) -> float:
        context = planned(*overrides)
        assert context.plan is not None
        found = expected_time.training_seconds(context.recipe, context.plan)
        assert found is not None
        return found - expected_time.BEGIN_SECONDS

    one = seconds("train.epochs=2")
    assert seconds("train.epochs=8") == pytest.approx(4 * one, rel=0.1)
    assert seconds("train.max_steps=25") < seconds("train.max_steps=50") < one
    assert seconds("train.epochs=2", "train.method=head") < seconds("train.epochs=2", "train.method=lora") < one
    assert seconds("train.epochs=2", "pack.strategy=pad", "tokenize.max_length=128", "pack.chunk_length=128") > 2 * one
    assert seconds("train.epochs=2", "data.limit=100") < one / 5
    assert seconds("train.epochs=2", "train.remat=true") > 1.2 * one, "another forward pass"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "1 second"), (74, "70 seconds"), (100, "2 minutes"), (3300, "60 minutes"), (7300, "2 hours"),
        (80000, "20 hours"), (200_000, "2 days"),
    ],
)  # fmt: skip
def test_times_in_words(seconds: float, said: str) -> None:
    assert spoken(seconds) == said


@pytest.mark.slow
def test_a_short_first_run_is_said_and_not_rehearsed(house: InProcessShell) -> None:
    """MiniLM has more than 10 million parameters. The estimate is right within a factor of 4, on a machine that is shared."""
    steps = ("train.max_steps=8", "data.limit=200")
    before = house.json("plan", "rows.yaml", *ON, *steps)
    (guess,) = (stage["seconds"] for stage in before["stages"] if stage["stage"] == "train")
    assert guess is not None and "time     train takes about" in house("plan", "rows.yaml", *ON, *steps).stdout
    done = house("run", "rows.yaml", *ON, *steps, "--direct", "--until", "train", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("train takes about ") and "rehears" not in done.stderr
    (stage,) = (stage for stage in house.json("show", "rows.yaml", *ON, *steps)["stages"] if stage["stage"] == "train")
    assert stage["action"] == "hit"
    again = house("plan", "rows.yaml", *ON, "train.max_steps=9", "data.limit=200").stdout
    assert "time     train" not in again  # an earlier run tells
    (known,) = (
        stage["seconds"]
        for stage in house.json("plan", "rows.yaml", *ON, "train.max_steps=9", "data.limit=200")["stages"]
        if stage["stage"] == "train"
    )
    assert known / 4 < guess < known * 4
