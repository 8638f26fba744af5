"""A long run of a model that is not small is rehearsed first, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.rehearsal.faults import FAULTS, write_sound
from tests.helpers.command_line import Shell
from trnflow.flows.finetune import finetune
from trnflow.flows.rehearsal import before_run
from trnflow.flows.rehearsal import rehearse as module
from trnflow.flows.rehearsal.before_run import is_long, parameters_of, rehearse_first
from trnflow.flows.rehearsal.rehearse import Rehearsal
from trnflow.flows.runner.context import RunContext, make_plan, open_context
from trnflow.flows.runner.plan import Options
from trnflow.tasks.errors import DataError
from trnflow.tasks.events import EventLog
from trnflow.tasks.keys.code_closure import Closure

LARGE = "model.config={model_type: llama, hidden_size: 1024, num_hidden_layers: 8, num_attention_heads: 8}"
ALWAYS = ("run.rehearse_above_minutes=0",)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    write_sound(tmp_path, "instruct")
    return tmp_path


def planned(*overrides: str) -> RunContext:
    context = open_context("mine.yaml", [LARGE, *ALWAYS, *overrides])
    context.plan = make_plan(finetune(context.recipe), context)
    return context


def test_what_is_long() -> None:
    plan = planned().plan
    assert plan is not None
    assert is_long(plan, Options(), 10.0)  # nothing tells how long it takes
    assert not is_long(plan, Options(until="pack_chunks"), 10.0)
    plan.roles["training"].seconds = 700.0  # as estimated; of the other stages no run tells
    assert is_long(plan, Options(), 10.0) and not is_long(plan, Options(), 20.0)
    for step in plan.steps.values():
        step.seconds = 100.0
    assert is_long(plan, Options(), 10.0) and not is_long(plan, Options(), 20.0)
    small = planned(LARGE.replace("1024", "64")).plan
    assert small is not None and not is_long(small, Options(), 10.0)


def test_parameters_by_a_configuration() -> None:
    """Within a fifth of BERT's 110 million and Llama 2's 6.7 billion, and of the demos' less than a million."""
    bert = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "vocab_size": 30522}
    llama = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "vocab_size": 32000}
    assert parameters_of({"pretrained": bert, "overrides": {}}) == pytest.approx(110e6, rel=0.2)
    assert parameters_of({"pretrained": llama, "overrides": {}}) == pytest.approx(6.7e9, rel=0.25)
    assert parameters_of({"pretrained": {"text_config": llama}, "overrides": {}}) > 1e9
    for name in ("demo", "demo-llm"):
        plan = make_plan(finetune((context := open_context(name)).recipe), context)
        assert parameters_of(plan.sources["model"].identity["config"]) < 1e7


def test_a_pass_is_remembered_and_a_fault_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rehearsal itself is left out: what calls it is tried here."""
    begun: list[str] = []
    outcomes = iter([DataError("a row is wrong", "repair it"), None, None, None])

    def counted(context: RunContext, *readers: object) -> Rehearsal:
        begun.append(context.recipe.name)
        return Rehearsal(fault=next(outcomes), remarks=["a remark", "4 rows cut"], of_sample={"4 rows cut"})

    monkeypatch.setattr(module, "rehearse", counted)
    first = rehearse_first(planned(), Options(), ())
    assert first is not None and first.fault is not None
    passing = planned()
    assert rehearse_first(passing, Options(), ()) is not None
    assert passing.plan is not None and "a remark" in passing.plan.notes
    assert "4 rows cut" not in passing.plan.notes, "the run says it of all rows"
    assert rehearse_first(planned(), Options(), ()) is None
    with (folder / "answers.jsonl").open("a") as file:  # tomorrow's rows
        file.write('{"instruction": "more", "response": "Yes."}\n')
    assert rehearse_first(planned(), Options(), ()) is None
    assert rehearse_first(planned("train.method=full", "tokenize.max_length=128"), Options(), ()) is not None
    edited = Closure({"trnflow.tasks.train": "sha256:edited"}, {})
    monkeypatch.setattr(before_run, "stage_closure", lambda stage, memo: edited)
    assert rehearse_first(planned(), Options(), ()) is not None, "other code may have another fault"
    assert rehearse_first(planned(), Options(), ()) is None
    assert len(begun) == 4


def test_which_remarks_are_of_the_sample() -> None:
    """The rows are loaded whole; the other data stages see the sample's."""
    rehearsal = Rehearsal()
    log = EventLog(rehearsal)
    for stage in ("load_data", "tokenize_text", "check_turns"):
        log.write("note", stage=stage, level="warning", text=f"{stage} remarks")
    assert len(rehearsal.remarks) == 3 and rehearsal.of_sample == {"tokenize_text remarks"}


def test_a_run_with_a_fault_ends_before_its_first_stage(folder: Path) -> None:
    plant = FAULTS["two classes of one row"]
    write_sound(folder, plant.kind)
    plant.plant(folder)
    shell = Shell(folder)
    shell.environ["TRNFLOW_HOME"] = str(folder / "home")
    wide = ("model.config.hidden_size=1024", "model.config.intermediate_size=8192", "tracking.enabled=false", *ALWAYS)
    message = shell.error("run", "mine.yaml", "--direct", *plant.overrides, *wide, code=2)
    assert plant.words in message
    assert not list((folder / "home/store").glob("records/*/*")) and shell.json("runs")["runs"] == []
