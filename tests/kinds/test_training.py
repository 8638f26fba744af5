"""Tasks with targets in columns train as transformers' Trainer does, on both engines, and resume to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.products import few, sampled
from tests.training.run_stage import check_resumes_after_a_kill, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, VOCABULARY, packed_targets, pretrained
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Schedule, Split

TASKS = {
    "multi_label": ("multi_label", ["red", "green", "blue"], "multi_label_classification"),
    "score": ("regression", ["score"], "regression"),
    "scores": ("regression", ["joy", "anger"], "regression"),
    "tags": ("token_classification", ["O", "B-place", "I-place", "B-name", "I-name"], None),
}
COMMON: dict[str, Any] = {
    "global_batch": 8,
    "learning_rate": 3e-3,
    "weight_decay": 0.0,
    "log_every": 1,
    "max_steps": 20,
    "seed": 5,
}
ENGINES: dict[str, dict[str, Any]] = {"native": {"engine": "native"}, "xla": {"engine": "xla", "devices": 2}}


def started(folder: Path, labels: list[str], problem: str | None, task: str = "regression") -> Source:
    """A model with all its weights, head included, in `folder`."""
    import torch
    import transformers

    torch.manual_seed(1)
    torch.set_num_threads(1)  # so small a model waits for threads
    fields = {name: value for name, value in BERT.items() if name != "model_type"}
    config = transformers.BertConfig(
        **fields,
        **DRY,
        vocab_size=VOCABULARY,
        id2label=dict(enumerate(labels)),
        problem_type=problem,
        pad_token_id=0,
        initializer_range=0.2,
    )
    getattr(transformers, kind_of(task).auto_class).from_config(config).save_pretrained(folder)
    return pretrained(folder)


def of_trainer(model: Path, packed: Input, folder: Path) -> list[float]:
    """The losses of transformers' Trainer on the same batches."""
    import torch
    import transformers

    train = Split(packed, "train")
    schedule = Schedule(train.rows, COMMON["global_batch"], seed=COMMON["seed"], last_batch="drop")
    batches = [train.read(schedule.address(step)) for step in range(COMMON["max_steps"])]
    rows = [
        {
            "input_ids": torch.from_numpy(batch.input_ids).long(),
            "attention_mask": torch.from_numpy(batch.segment_ids).long(),
            "labels": torch.from_numpy(batch.targets if batch.targets.dtype.kind == "f" else batch.targets.astype(int)),
        }
        for batch in batches
    ]

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *ignored: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

    arguments = transformers.TrainingArguments(
        str(folder), max_steps=len(rows), per_device_train_batch_size=1, learning_rate=COMMON["learning_rate"],
        weight_decay=0.0, logging_steps=1, logging_nan_inf_filter=False, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    loaded = getattr(transformers, kind_of(packed.meta["task"]).auto_class).from_pretrained(model)
    trainer = InOrder(loaded, arguments, train_dataset=rows, data_collator=lambda items: items[0])
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.slow
@sampled("case, engine", [*TASKS], [*ENGINES])
def test_losses_are_those_of_transformers_trainer(case: str, engine: str, tmp_path: Path) -> None:
    task, labels, problem = TASKS[case]
    source, packed = (
        started(tmp_path / "model", labels, problem, task),
        packed_targets(tmp_path / "packed", task, labels),
    )
    config = TrainConfig(**COMMON, **ENGINES[engine])
    ours = run_stage(traced_and_trained, config, tmp_path / "run", model=source, packed=packed).curve("loss")
    theirs = of_trainer(tmp_path / "model", packed, tmp_path / "theirs")
    assert len(theirs) == len(ours) == 20 and theirs[-1] < 0.9 * theirs[0]
    apart = max(abs(a - b) for a, b in zip(ours.values(), theirs, strict=True))
    print(f"{case} {engine}: largest difference of 20 losses {apart:.2g}")
    assert apart <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "engine"),
    few(
        [("multi_label", "native"), ("score", "native"), ("tags", "native"), ("multi_label", "xla"), ("tags", "xla")], 1
    ),
)
def test_a_killed_run_resumes_to_the_same_bits(case: str, engine: str, tmp_path: Path) -> None:
    task, labels, problem = TASKS[case]
    inputs = {
        "model": started(tmp_path / "model", labels, problem, task),
        "packed": packed_targets(tmp_path / "packed", task, labels),
    }
    fields = {**COMMON, "max_steps": 60, "checkpoint_every": 8, "last_batch": "pad"}
    check_resumes_after_a_kill(TrainConfig(**fields, **ENGINES[engine]), tmp_path, inputs)
