"""DoRA and what else is asked for train as in peft and transformers' Trainer, alike on every engine and layout."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kinds.test_training import started
from tests.training.parity import agree
from tests.training.run_stage import Result, Stage, files_of, kill_after, run_in_turn, run_stage, traced_and_trained
from tests.training.toys import LLAMA, packed_classes, packed_lm, pretrained, saved
from trnflow.tasks.artifact import Input
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Schedule, Split
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.shared_types import PARAMETER

STEPS, RATE = 5, 1e-2
COMMON: dict[str, Any] = {"global_batch": 8, "max_steps": STEPS, "learning_rate": RATE, "log_every": 1}


def lora(**fields: Any) -> dict[str, Any]:
    return {"method": "lora", "lora": {"rank": 4, "alpha": 8, "targets": "all-linear", **fields}}


FORMS: dict[str, dict[str, Any]] = {
    "dora": lora(use_dora=True),
    "pissa": lora(init_lora_weights="pissa", use_rslora=True),
    "saved": lora(modules_to_save=["embed_tokens", "norm"]),
}
FORMS |= {
    "loraplus": lora(loraplus_lr_ratio=16),
    "rates": {
        "method": "full",
        "learning_rate_mapping": {"layers.0": 1e-3, "embed_tokens": 2e-2, "layers.1.mlp": 3e-2},
    },
}
FORMS |= {
    "neftune": {"method": "full", "neftune_noise_alpha": 5.0},
    "ema": {"method": "full", "ema_decay": 0.8, "keep_best": True},
}
TP, TINY = {"tensor_parallel_size": 2}, {"remat": True, "micro_batch": 1}
NATIVE: list[tuple[str, dict[str, Any]]] = [
    ("dora", {"fsdp": True, **TINY}),
    ("dora", {"zero1": True}),
    ("pissa", TP),
    ("saved", TP),
    ("saved", {"fsdp": True, "micro_batch": 1}),
    ("loraplus", TP),
    ("rates", {"fsdp": True}),
    ("neftune", TP),
    ("ema", {"zero1": True}),
    ("ema", {"fsdp": True}),
]
XLA: list[tuple[str, dict[str, Any]]] = [
    ("dora", {"micro_batch": 1}),
    ("pissa", {"zero1": True, **TINY}),
    ("saved", TP),
    ("loraplus", {"zero1": True}),
    ("rates", {"micro_batch": 1}),
    ("ema", {"zero1": True}),
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
    ("engine", "layouts"),
    [("native", NATIVE), pytest.param("xla", XLA, marks=[pytest.mark.xla, pytest.mark.nightly])],
    ids=["native", "xla"],
)
def test_layouts_agree(engine: str, layouts: list[Any], llama: Any, plain: Any, tmp_path: Path) -> None:
    configs = [TrainConfig(**COMMON, **FORMS[form], **layout, engine=engine, devices=2) for form, layout in layouts]
    for (form, _), found in zip(layouts, run_in_turn(configs, tmp_path, **llama), strict=True):
        agree(found, plain[form], weights=0.1 * RATE * STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dora", "pissa", "saved"])
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
    made = run_stage(consolidate, ConsolidateConfig(), folder, shards=found.artifact, model=inputs["model"])
    return made.artifact.path


@pytest.mark.slow
def test_the_average_is_evaluated_and_published(llama: Any, plain: Any, tmp_path: Path) -> None:
    """It is torch's, over the weights of trainings that end after each of the steps."""
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    fields = {**COMMON, "schedule": "constant", "engine": "native"}
    configs = [TrainConfig(**{**fields, "max_steps": step}) for step in range(1, STEPS + 1)]
    runs = run_in_turn([*configs, TrainConfig(**fields, ema_decay=0.8)], tmp_path / "runs", **llama)
    *weights, found = (Reader(run.artifact.path, PARAMETER) for run in runs)
    model = torch.nn.ParameterDict({name.replace(".", "/"): weights[0].tensor(name) for name in found.names})
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    for step in weights:
        for name in step.names:
            model[name.replace(".", "/")].data.copy_(step.tensor(name))
        theirs.update_parameters(model)
    for name in found.names:
        expected = theirs.module[name.replace(".", "/")].detach()
        torch.testing.assert_close(found.tensor(name), expected, rtol=0, atol=1e-6)
    folder = consolidated(runs[-1], llama, tmp_path / "model")
    again = TrainConfig(**{**fields, "max_steps": 1})
    (opened,) = run_in_turn([again], tmp_path / "again", model=pretrained(folder), packed=llama["packed"])
    assert opened.curve("eval_loss")[0] == pytest.approx(runs[-1].curve("eval_loss")[STEPS], abs=1e-6)
    assert runs[-1].curve("eval_loss")[STEPS] != pytest.approx(runs[-2].curve("eval_loss")[STEPS], abs=1e-4)


ALL = {"learning_rate_mapping": {"norm": 2e-3}, "neftune_noise_alpha": 5.0, "ema_decay": 0.9, "keep_best": True}
BOTH = lora(use_dora=True, init_lora_weights="pissa", loraplus_lr_ratio=4, modules_to_save=["norm"], dropout=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"engine": "native"},
        pytest.param({"engine": "xla", "devices": 2, "zero1": True}, marks=[pytest.mark.xla, pytest.mark.nightly]),
    ],
    ids=["native", "xla"],
)
def test_all_together_resume_to_the_same_bits(layout: dict[str, Any], llama: Any, tmp_path: Path) -> None:
    fields = {**COMMON, **BOTH, **ALL, **layout, "learning_rate": 1e-3, "max_steps": 20, "eval_every": 5}
    config = TrainConfig(**fields, checkpoint_every=4)
    whole = run_stage(traced_and_trained, config, tmp_path / "whole", **llama)
    killed = Stage(traced_and_trained, config, tmp_path / "killed", tmp_path / "partial", **llama)
    kill_after(killed, step=9)
    assert killed.process.wait() == -signal.SIGKILL
    resumed = Stage(traced_and_trained, config, tmp_path / "resumed", tmp_path / "partial", **llama).result()
    assert any(text.startswith("resumes at step") for text in resumed.said("info"))
    assert files_of(resumed.artifact) == files_of(whole.artifact) and resumed.artifact.meta == whole.artifact.meta


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dora", "loraplus"])
def test_losses_are_those_of_peft_and_the_trainer(form: str, tmp_path: Path) -> None:
    labels = ["red", "green", "blue"]
    source = started(tmp_path / "model", labels, None, "classification")
    packed = packed_classes(tmp_path / "packed", rows=100)
    fields = {"max_steps": 20, "weight_decay": 0.0, "learning_rate": 2e-3}
    config = TrainConfig(**{**COMMON, **FORMS[form], **fields}, engine="native")
    (ours,) = run_in_turn([config], tmp_path / "run", model=source, packed=packed)
    theirs = of_trainer(tmp_path / "model", packed, config, tmp_path / "theirs")
    apart = max(abs(a - b) for a, b in zip(ours.curve("loss").values(), theirs, strict=True))
    print(f"{form}: largest difference of 20 losses {apart:.2g}")
    assert theirs[-1] < 0.9 * theirs[0] and apart <= 1e-5


def of_trainer(model: Path, packed: Input, config: TrainConfig, folder: Path, new: Sequence[int] = ()) -> list[float]:
    """The losses of transformers' Trainer on peft's model and the same batches. new: ids of new tokens."""
    import peft
    import torch
    import transformers
    from peft.optimizers import create_loraplus_optimizer

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
    if new:
        table = loaded.resize_token_embeddings(new[-1] + 1, mean_resizing=False).weight
        table.data[list(new)] = table.data[: new[0]].mean(0)
    torch.manual_seed(config.seed)
    settings = peft.LoraConfig(
        r=given.rank, lora_alpha=given.alpha, target_modules="all-linear", use_dora=given.use_dora, task_type="SEQ_CLS",
        modules_to_save=["classifier", "pooler"], exclude_modules=["bert.pooler.dense"],
        trainable_token_indices={"word_embeddings": list(new)} if new else None,
    )  # fmt: skip
    adapted = peft.get_peft_model(loaded, settings)
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=len(rows), per_device_train_batch_size=1, learning_rate=config.learning_rate,
        weight_decay=0.0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    ratio, optimizer = given.loraplus_lr_ratio, None
    if ratio is not None:
        optimizer = create_loraplus_optimizer(
            adapted, torch.optim.AdamW, lr=config.learning_rate, loraplus_lr_ratio=ratio
        )
    trainer = InOrder(
        adapted, arguments, train_dataset=rows, data_collator=lambda items: items[0], optimizers=(optimizer, None)
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
