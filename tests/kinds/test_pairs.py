"""Rows of two texts: from real sentences to the losses of transformers' Trainer, whose tokenizer cuts and types them by itself;
resumed to the same bits; predicted as transformers' pipeline predicts; exported with their token types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import Bench
from tests.helpers.products import few
from tests.training.run_stage import check_resumes_after_a_kill, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, pretrained
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.chunks import open_segments
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.batches.sampler import BatchAddress, Schedule, Split
from trnflow.tasks.training.config import TrainConfig

STEPS, MOST = 20, 20
COMMON: dict[str, Any] = {
    "global_batch": 8, "learning_rate": 3e-3, "weight_decay": 0.0, "log_every": 1, "max_steps": STEPS, "seed": 5,
    "last_batch": "drop",
}  # fmt: skip
ENGINES: dict[str, dict[str, Any]] = {"native": {"engine": "native"}, "xla": {"engine": "xla", "devices": 2}}
SUBJECTS = ("A man", "The old woman", "One of the children", "Our neighbour's dog", "Nobody that I know")
ACTS = ("plays a flute", "is cutting an onion on the table", "runs", "eats bread in the kitchen by the window")


def pairs(count: int) -> list[dict[str, Any]]:
    """Two sentences with the share of words that they have in common."""
    rows = []
    for number in range(count):
        first = f"{SUBJECTS[number % 5]} {ACTS[number // 5 % 4]}."
        second = f"{SUBJECTS[number // 3 % 5]} {ACTS[number // 7 % 4]}."
        ours, theirs = {*first.split()}, {*second.split()}
        rows.append({"first": first, "second": second, "score": round(len(ours & theirs) / len(ours | theirs), 3)})
    return [{**row, "label": "near" if row["score"] > 0.4 else "far"} for row in rows]


def write(folder: Path, rows: list[dict[str, Any]], name: str = "train.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return folder


def packed_pairs(folder: Path, task: str) -> Input:
    """The rows through the data stages; a tokenizer is trained on them."""
    bench: Bench = Bench(folder, [])
    target: dict[str, Any] = {} if task == "classification" else {"target": "score"}
    source = str(write(folder / "rows", pairs(140)))
    data = {"text": ["first", "second"], **({"columns": {"score": "score"}} if target else {"label": "label"})}
    texts = bench.texts(bench.rows(source=source, **data), task=task, text_pair="second", **target)
    train = {"kind": "wordpiece", "vocab_size": 120}
    tokens = bench.tokens(texts, {"config": {"model_type": "bert"}}, max_length=MOST, train=train)
    return bench.packed(tokens, strategy="bucket", chunk_length=24, buckets=2)


def started(folder: Path, packed: Input) -> Source:
    """A model with all its weights, head included, in `folder`."""
    import torch
    import transformers

    torch.manual_seed(1)
    torch.set_num_threads(1)  # so small a model waits for threads
    fields = {name: value for name, value in BERT.items() if name != "model_type"}
    problem = kind_of(packed.meta["task"]).problem_type
    config = transformers.BertConfig(
        **fields, **DRY, vocab_size=packed.meta["vocab_size"], id2label=dict(enumerate(packed.meta["labels"])),
        problem_type=problem, pad_token_id=packed.meta["pad_id"], initializer_range=0.2,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return pretrained(folder)


def of_trainer(model: Path, packed: Input, folder: Path) -> list[float]:
    """The losses of transformers' Trainer: the texts of the same batches, through its own tokenizer."""
    import torch
    import transformers

    tokenizer = transformers.BertTokenizerFast(tokenizer_file=str(packed.path / "tokenizer/tokenizer.json"))
    texts, train = pairs(140), Split(packed, "train")
    schedule = Schedule(train.rows, COMMON["global_batch"], seed=COMMON["seed"], last_batch="drop")

    def batch(address: BatchAddress) -> dict[str, Any]:
        given = [(length, row) for length, rows in address.unmasked_rows().items() for row in rows]
        numbers = [int(open_segments(packed, "train", length)[row, 0]) for length, row in given]
        rows = [texts[number] for number in numbers]
        encoded = tokenizer(
            [row["first"] for row in rows], [row["second"] for row in rows], truncation=True, max_length=MOST, padding=True,
            return_tensors="pt", return_token_type_ids=True,
        )  # fmt: skip
        if packed.meta["task"] != "classification":
            return {**encoded, "labels": torch.tensor([[row["score"]] for row in rows])}
        return {**encoded, "labels": torch.tensor([packed.meta["labels"].index(row["label"]) for row in rows])}

    batches = [batch(schedule.address(step)) for step in range(STEPS)]
    assert any((each["token_type_ids"] == 1).any() for each in batches)

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *ignored: Any) -> Any:
            return torch.utils.data.SequentialSampler(batches)

    arguments = transformers.TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=1, learning_rate=COMMON["learning_rate"],
        weight_decay=0.0, logging_steps=1, logging_nan_inf_filter=False, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(model)
    trainer = InOrder(loaded, arguments, train_dataset=batches, data_collator=lambda items: items[0])
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "engine"),
    few([("classification", "native"), ("reranker", "xla"), ("regression", "xla"), ("reranker", "native")], 2),
)
def test_losses_are_those_of_transformers_trainer(task: str, engine: str, tmp_path: Path) -> None:
    packed = packed_pairs(tmp_path, task)
    assert sum(packed.meta["truncated"].values()) > 10 and len(packed.meta["lengths"]) == 2
    source, config = started(tmp_path / "model", packed), TrainConfig(**COMMON, **ENGINES[engine])
    ours = run_stage(traced_and_trained, config, tmp_path / "run", model=source, packed=packed).curve("loss")
    theirs = of_trainer(tmp_path / "model", packed, tmp_path / "theirs")
    assert len(theirs) == len(ours) == STEPS
    apart = max(abs(a - b) for a, b in zip(ours.values(), theirs, strict=True))
    print(f"pairs, {task}, {engine}: largest difference of {STEPS} losses {apart:.2g}")
    assert apart <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("task", "engine"), few([("reranker", "native"), ("classification", "xla")], 1))
def test_a_killed_run_resumes_to_the_same_bits(task: str, engine: str, tmp_path: Path) -> None:
    packed = packed_pairs(tmp_path, task)
    inputs = {"model": started(tmp_path / "model", packed), "packed": packed}
    config = TrainConfig(**{**COMMON, "max_steps": 60, "checkpoint_every": 8, "last_batch": "pad"}, **ENGINES[engine])
    check_resumes_after_a_kill(config, tmp_path, inputs)


RECIPE = """
extends: demo
name: mine
data: {{source: rows, name: null, text: first, label: {label}, split: {{validation: 0.2, test: 0.2}}}}
format: {{task: {task}, text_pair: second{target}}}
tokenize: {{max_length: 20, train: {{vocab_size: 120}}}}
pack: {{strategy: bucket, chunk_length: 24, buckets: 2}}
train: {{max_steps: 30, global_batch: 32, checkpoint_every: 50}}
export: {{target: {export}, batch: 4}}
"""
SMALL = ("tracking.enabled=false", "--on", "cpu")
CASES = {"classification": ("label", "", "onnx"), "regression": ("null", ", target: score", "stablehlo")}


@pytest.mark.slow
@pytest.mark.parametrize("task", few(CASES, 1))
def test_a_pair_goes_through_all_stages_and_opens_in_transformers(task: str, tmp_path: Path) -> None:
    from transformers import pipeline

    label, target, export = CASES[task]
    shell = InProcessShell(tmp_path)
    write(tmp_path / "rows", pairs(140))
    (tmp_path / "mine.yaml").write_text(RECIPE.format(task=task, label=label, target=target, export=export))
    shell.json("run", "mine.yaml", "--direct", *SMALL)
    shown = shell("preview", "mine.yaml", *SMALL).stdout
    assert "[SEP]" in shown and shown.count("row 1:") == 1
    for stage in ("consolidate", "export_neuron", "evaluate_model"):
        assert shell("get", "mine.yaml", stage, stage, *SMALL).returncode == 0
    document = json.loads((tmp_path / "export_neuron/export.json").read_text())
    assert document["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    metrics = json.loads((tmp_path / "evaluate_model/report.json").read_text())["metrics"]
    assert metrics["export_agreement"] == 1 and metrics["export_max_difference"] < 1e-4

    asked = [{"first": row["first"], "second": row["second"]} for row in pairs(9)[3:]]
    write(tmp_path, asked, "asked.jsonl")
    pipe = pipeline("text-classification", str(tmp_path / "consolidate"), top_k=None, device="cpu")
    theirs = [pipe({"text": row["first"], "text_pair": row["second"]}, truncation=True, max_length=20) for row in asked]
    for export_option in ((), ("--export",)):
        ours = shell.json("predict", "mine.yaml", *SMALL, *export_option, "--file", "asked.jsonl")["results"]
        for row, mine, their in zip(asked, ours, theirs, strict=True):
            numbers = mine["probabilities" if task == "classification" else "scores"]
            each = their if isinstance(their, list) else [their]
            assert numbers == {one["label"]: pytest.approx(one["score"], abs=1e-5) for one in each}
            assert (mine["text"], mine["text_pair"]) == (row["first"], row["second"])
    alone = shell.error("predict", "mine.yaml", *SMALL, "one text", code=2)
    assert "reads the columns first, second" in alone


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("format.task=pair",), "a pair of texts is what the model reads, not what it learns"),
        (("format.task=chat",), "`text_pair` is for tasks that label rows, not chat"),
        (("format.prompt_template='{{ first }}'",), "`prompt_template` makes one text, and `text_pair` is a second"),
        (("format.text_pair=secnd",), "has no column secnd"),
        (("data.text=second",), "format.text_pair: second is the only text"),
    ],
)
def test_settings_that_make_no_pair_are_refused(given: tuple[str, ...], message: str, tmp_path: Path) -> None:
    shell = InProcessShell(tmp_path)
    write(tmp_path / "rows", pairs(60))
    (tmp_path / "mine.yaml").write_text(RECIPE.format(task="classification", label="label", target="", export="none"))
    assert message in shell.error("plan", "mine.yaml", *SMALL, *given, code=2)


def test_an_empty_second_text_is_named_with_its_row(tmp_path: Path) -> None:
    shell, rows = InProcessShell(tmp_path), pairs(60)
    rows[41]["second"] = "  "
    write(tmp_path / "rows", rows)
    write(tmp_path / "rows", rows[:4], "test.jsonl")
    (tmp_path / "mine.yaml").write_text(RECIPE.format(task="classification", label="label", target="", export="none"))
    run = ("run", "mine.yaml", "--direct", *SMALL, "--until", "format_prompts", "data.split=null")
    said = shell.error(*run, code=1)
    assert "train row 42: the second text of the pair (second) is empty" in said and rows[41]["first"] in said
    assert shell(*run, "format.bad_rows=drop").returncode == 0
