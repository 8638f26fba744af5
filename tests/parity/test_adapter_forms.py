"""DoRA and what else is asked for train as in peft and transformers' Trainer, alike on every engine and layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kinds.test_training import started
from tests.training.parity import agree
from tests.training.run_stage import Result, run_in_turn
from tests.training.toys import LLAMA, packed_classes, packed_lm, saved
from trnflow.tasks.artifact import Input
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Schedule, Split

STEPS, RATE = 5, 1e-2
COMMON: dict[str, Any] = {"global_batch": 8, "max_steps": STEPS, "learning_rate": RATE, "log_every": 1}


def lora(**fields: Any) -> dict[str, Any]:
    return {"method": "lora", "lora": {"rank": 4, "alpha": 8, "targets": "all-linear", **fields}}


FORMS: dict[str, dict[str, Any]] = {
    "dora": lora(use_dora=True),
    "pissa": lora(init_lora_weights="pissa", use_rslora=True),
    "saved": lora(modules_to_save=["embed_tokens", "norm"]),
}
TP, TINY = {"tensor_parallel_size": 2}, {"remat": True, "micro_batch": 1}
NATIVE: list[tuple[str, dict[str, Any]]] = [
    ("dora", {"fsdp": True, **TINY}),
    ("dora", {"zero1": True}),
    ("pissa", TP),
    ("saved", TP),
    ("saved", {"fsdp": True, "micro_batch": 1}),
]
XLA: list[tuple[str, dict[str, Any]]] = [
    ("dora", {"micro_batch": 1}),
    ("pissa", {"zero1": True, **TINY}),
    ("saved", TP),
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("llama")
    return {"model": saved(root / "base", scale=4.0, **LLAMA), "packed": packed_lm(root / "packed", rows=STEPS * 8)}


@pytest.fixture(scope="module")
def plain(llama: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    configs = [TrainConfig(**COMMON, **fields, engine="native") for fields in FORMS.values()]
    return dict(zip(FORMS, run_in_turn(configs, tmp_path_factory.mktemp("plain"), **llama), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "layouts"), [("native", NATIVE), pytest.param("xla", XLA, marks=pytest.mark.xla)], ids=["native", "xla"]
)
def test_layouts_agree(engine: str, layouts: list[Any], llama: Any, plain: Any, tmp_path: Path) -> None:
    configs = [TrainConfig(**COMMON, **FORMS[form], **layout, engine=engine, devices=2) for form, layout in layouts]
    for (form, _), found in zip(layouts, run_in_turn(configs, tmp_path, **llama), strict=True):
        agree(found, plain[form], weights=0.1 * RATE * STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_what_is_published_opens_as_one_model(form: str, llama: Any, plain: Any, tmp_path: Path) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    found = plain[form]
    assert found.curve("eval_loss")[STEPS] < found.curve("eval_loss")[0] - 0.01
    folder = consolidated(found, llama, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(llama["model"].location["model"]["folder"])
    ids = torch.arange(3, 35)[None]
    with torch.no_grad():
        before, merged = base(ids).logits, AutoModelForCausalLM.from_pretrained(folder)(ids).logits
        theirs = peft.PeftModel.from_pretrained(base, folder / "adapter").eval()(ids).logits
    torch.testing.assert_close(merged, theirs, rtol=0, atol=1e-5)
    assert (merged - before).abs().max() > 0.1


def consolidated(found: Result, inputs: dict[str, Any], folder: Path) -> Path:
    from tests.training.run_stage import run_stage

    made = run_stage(consolidate, ConsolidateConfig(), folder, shards=found.artifact, model=inputs["model"])
    return made.artifact.path


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dora"])
def test_losses_are_those_of_peft_and_the_trainer(form: str, tmp_path: Path) -> None:
    labels = ["red", "green", "blue"]
    source = started(tmp_path / "model", labels, None, "classification")
    packed = packed_classes(tmp_path / "packed", rows=100)
    config = TrainConfig(**{**COMMON, **FORMS[form], "max_steps": 20, "weight_decay": 0.0}, engine="native")
    (ours,) = run_in_turn([config], tmp_path / "run", model=source, packed=packed)
    theirs = of_trainer(tmp_path / "model", packed, config, tmp_path / "theirs")
    apart = max(abs(a - b) for a, b in zip(ours.curve("loss").values(), theirs, strict=True))
    print(f"{form}: largest difference of 20 losses {apart:.2g}")
    assert theirs[-1] < 0.9 * theirs[0] and apart <= 1e-5


def of_trainer(model: Path, packed: Input, config: TrainConfig, folder: Path) -> list[float]:
    """The losses of transformers' Trainer on peft's model and the same batches."""
    import peft
    import torch
    import transformers

    train, given = Split(packed, "train"), config.lora
    assert given is not None
    schedule = Schedule(train.rows, config.global_batch, seed=config.seed, last_batch="pad")
    batches = [train.read(schedule.address(step)) for step in range(config.max_steps or 0)]
    rows = [
        {
            "input_ids": torch.from_numpy(batch.input_ids).long(),
            "attention_mask": torch.from_numpy(batch.segment_ids).long(),
            "labels": torch.from_numpy(batch.targets).long(),
        }
        for batch in batches
    ]

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *ignored: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(model)
    torch.manual_seed(config.seed)
    settings = peft.LoraConfig(
        r=given.rank, lora_alpha=given.alpha, target_modules="all-linear", use_dora=given.use_dora, task_type="SEQ_CLS",
        modules_to_save=["classifier", "pooler"], exclude_modules=["bert.pooler.dense"],
    )  # fmt: skip
    adapted = peft.get_peft_model(loaded, settings)
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=len(rows), per_device_train_batch_size=1, learning_rate=config.learning_rate,
        weight_decay=0.0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = InOrder(adapted, arguments, train_dataset=rows, data_collator=lambda items: items[0])
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
