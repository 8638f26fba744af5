"""What a later stage needs is asked before the first one runs, and again when an earlier one has made it known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from trnflow.flows.display.run_page import run_page
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import context_of, make_plan, open_store
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import run
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.system import gpus
from trnflow.tasks.system.gpus import Driver, Gpu

RECIPE = """
extends: demo
data: {source: rows.csv, name: null, text: text, label: label, split: {validation: 0.2, test: 0.2}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline_calls: None) -> Path:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    rows = (f"row {n},{('pos', 'neg')[n % 2]},{n / 7:.2f}\n" for n in range(60))
    (tmp_path / "rows.csv").write_text("text,label,score\n" + "".join(rows))
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return tmp_path


def refusal(*overrides: str, here: Mapping[str, str] | None = None) -> TrnflowError:
    """Why a plan refuses; it is checked that a run refuses alike, before a stage runs."""
    recipe = settings.load("mine.yaml", overrides)
    store = open_store(recipe)
    opened = context_of(recipe, store, create=True)
    plan = make_plan(finetune(recipe), opened)
    with pytest.raises(TrnflowError) as refused:
        plan.check_needs(Options(), here=here)
    opened.plan = None
    result = run(finetune(recipe), opened, Options())
    assert result.error is not None and str(result.error) == str(refused.value)
    assert not result.steps and not store.records("load_data")
    return refused.value


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (["data.label=labl"], "data.label: rows.csv has no column labl", "label"),
        (["data.text=[text, body]"], "data.text: rows.csv has no column body", "text"),
        (["data.split={}"], "no rows in its test split (it has: train)", "evaluate.split"),
        (
            ["data.split.validation=null", "evaluate.split=validation"],
            "no rows in its validation split",
            "evaluate.split",
        ),
        (
            ["data.split.validation=null", "train.keep_best=true"],
            "on the validation split, which has no rows",
            "keep_best",
        ),
        (["format.task=instruction", "data.label=null", "data.text=null"], "no column instruction", "format"),
        (["format.task=chat", "data.label=null", "data.text=null"], "no chat template", "sections"),
        (["train.class_weights={other: 2.0}", "data.labels=[neg, pos]"], "which is not a label", "neg"),
        (["tokenize.overlong=split"], "a text with a class label can't be split", "truncate"),
        (["train.method=lora"], "this one starts from scratch", "model.source"),
        (["pack.strategy=bfd"], "puts several rows in a chunk, but a row of classification stands alone", "bucket"),
        (["tokenize.train=null"], "the recipe's model has no tokenizer", "model.tokenizer"),
        (["model.config.hidden_sise=8"], "model.config.hidden_sise: bert has no such field", "hidden_size"),
        (["export.length=65"], "positions for 64 tokens, and the export is for 65", "export.length"),
        (
            ["evaluate.prompts=[[{role: user, content: hi}]]"],
            "evaluate.prompts has messages, and the model was not trained with a chat template",
            "texts",
        ),
        (["pack.chunk_length=128"], "rows of 128 tokens, but the model has 64 positions", "max_length"),
    ],
)
def test_a_run_that_is_bound_to_fail_is_refused(folder: Path, overrides: list[str], message: str, fix: str) -> None:
    error = refusal(*overrides)
    assert message in str(error) and fix in error.fix


def test_what_only_the_machine_that_runs_must_have_is_asked_by_a_run(folder: Path) -> None:
    neuron = ["export.target=neuron"]
    recipe = settings.load("mine.yaml", neuron)
    make_plan(finetune(recipe), context_of(recipe, open_store(recipe), create=True)).check_needs(Options())
    assert "needs AWS's compiler" in str(refusal(*neuron, here={}))


def test_a_gpu_that_training_can_not_use_is_missed_before_a_stage_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the process that trains: this one's variables are not asked where `launch.environment` has them."""
    monkeypatch.setattr(
        gpus, "by_nvml", lambda: Driver((Gpu("NVIDIA A10G", "GPU-1", 24 << 30, (8, 6), None),), "570", (12, 8))
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    gpu = [
        "train.device=cuda",
        "train.engine=native",
        "train.devices=1",
        'launch.environment={CUDA_VISIBLE_DEVICES: ""}',
    ]
    assert "CUDA_VISIBLE_DEVICES= hides 1 x NVIDIA A10G" in str(refusal(*gpu, here=hidden))
    assert "train.devices is 2, and there are 1 GPUs" in str(refusal(*gpu[:2], "train.devices=2", here={}))
    hides = "evaluate.device is cuda, and CUDA_VISIBLE_DEVICES= hides"
    assert hides in str(refusal("evaluate.device=cuda", gpu[3], here=hidden))


def test_stages_that_the_run_does_not_come_to_are_not_asked(folder: Path) -> None:
    recipe = settings.load("mine.yaml", ["train.method=lora", "data.split={}"])
    opened = context_of(recipe, open_store(recipe), create=True)
    result = run(finetune(recipe), opened, Options(until="format_prompts"))
    assert result.error is None and [step.action for step in result.steps] == ["ran", "ran"]


def test_an_earlier_stage_makes_it_known(folder: Path) -> None:
    """How many rows a split has is known with the rows: 60 of them are no batch of 96."""
    recipe = settings.load("mine.yaml", ["train.last_batch=drop"])
    opened = context_of(recipe, open_store(recipe), create=True)
    make_plan(finetune(recipe), opened).check_needs(Options())
    result = run(finetune(recipe), opened, Options())
    assert "not one whole batch of 96" in str(result.error)
    assert [step.name for step in result.steps] == ["load_data", "format_prompts", "tokenize_text", "pack_chunks"]


def test_data_without_a_test_split_gives_one_and_says_so(folder: Path) -> None:
    recipe = settings.load("mine.yaml", ["data.split=null"])
    opened = context_of(recipe, open_store(recipe), create=True)
    result = run(finetune(recipe), opened, Options(until="load_data"))
    (step,) = result.steps
    assert step.artifact is not None and {*step.artifact.meta["splits"]} == {"train", "test"}
    assert any("10 % of the rows of train" in note for note in result.notes)
    recipe = settings.load("mine.yaml", ["data.split=null", "data.splits={train: rows.csv, validation: rows.csv}"])
    result = run(finetune(recipe), context_of(recipe, open_store(recipe)), Options(until="load_data"))
    assert {*result.steps[0].artifact.meta["splits"]} == {"train", "validation"}


def test_a_csv_column_of_fractions_is_no_label(folder: Path) -> None:
    recipe = settings.load("mine.yaml", ["data.label=score"])
    result = run(finetune(recipe), context_of(recipe, open_store(recipe), create=True), Options(until="load_data"))
    assert "rows.csv row 2: the label 0.14 is a fraction" in str(result.error)


@pytest.mark.parametrize(
    ("more", "unread"), [("", ["input", "topic"]), (", style: alpaca", ["topic"]), (", context: input", ["topic"])]
)
def test_columns_that_nothing_reads_are_named_before_and_after_the_rows_are_loaded_and_on_the_page(
    folder: Path, more: str, unread: list[str]
) -> None:
    rows = (f'{{"instruction": "do {n}", "input": "x", "output": "y", "topic": "z"}}\n' for n in range(60))
    (folder / "rows.jsonl").write_text("".join(rows))
    (folder / "mine.yaml").write_text(
        "extends: demo-llm\ndata: {source: rows.jsonl, name: null, ignore: [], split: {validation: 0.2, test: 0.2}}\n"
        f"format: {{response: output{more}}}\n"
    )
    wanted = [f"column {name} is not used (data.ignore silences this)" for name in unread]
    for _ in range(2):
        assert remarks() == wanted
        recipe = settings.load("mine.yaml")
        opened = context_of(recipe, open_store(recipe), create=True)
        result = run(finetune(recipe), opened, Options(until="load_data"))
        assert result.error is None and [note for note in result.notes if note.startswith("column")] == wanted
        page = run_page(opened.store, result.run, result.record, [], None, None)
        assert all(remark in page for remark in wanted)
    assert remarks("data.ignore=[input, topic]") == []


def test_only_columns_and_fields_that_the_recipe_does_not_know_are_named(folder: Path) -> None:
    """`new` writes those that it named into data.ignore; what comes later is said, of columns and of fields of messages."""
    (folder / "mine.yaml").write_text(
        "extends: demo-llm\ndata: {source: rows.jsonl, name: null, ignore: [source, messages.id], split: {test: 0.2}}\n"
        "format: {task: chat, chat_template: sections}\n"
    )

    def notes(more: dict[str, str]) -> list[str]:
        turns = [{"role": "user", "content": "hi", "id": 1, **more}, {"role": "assistant", "content": "ho"}]
        rows = [{"messages": turns, "source": "web", "n": str(n), **more} for n in range(60)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = settings.load("mine.yaml", ["data.ignore=[source, n, messages.id]"])
        opened = context_of(recipe, open_store(recipe), create=True)
        result = run(finetune(recipe), opened, Options(until="format_prompts"))
        assert result.error is None
        return [note for note in result.notes if "is not used" in note]

    assert notes({}) == []
    assert notes({"lang": "en"}) == [
        "column lang is not used (data.ignore silences this)",
        "field messages.lang is not used (data.ignore silences this)",
    ]


def test_columns_that_settings_leave_out_are_named_where_the_recipe_lists_the_others(folder: Path) -> None:
    """As a table that gets a column more."""
    lines = [f"text {n},{'ab'[n % 2]},{n},x" for n in range(60)]
    (folder / "rows.csv").write_text("\n".join(["text,label,id,more", *lines]) + "\n")
    (folder / "mine.yaml").write_text("extends: demo\ndata: {source: rows.csv, name: null, text: text, label: label}\n")
    assert remarks() == []
    assert remarks("data.ignore=[id]") == ["column more is not used (data.ignore silences this)"]


def remarks(*overrides: str) -> list[str]:
    """What a plan says about columns."""
    recipe = settings.load("mine.yaml", overrides)
    plan = make_plan(finetune(recipe), context_of(recipe, open_store(recipe), create=True))
    plan.check_needs(Options())
    return [note for note in plan.notes if note.startswith("column")]
