"""The programs beside which `gpu_training` measures engine native: HF Trainer, TRL and Unsloth, each as its users run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.bench_preference import LENGTH
from tests.bench.gpu_cases import Case, columns, model_class, pairs_in, tweets

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LEARNING_RATE = 1e-5


class Way(NamedTuple):
    """run: gets `Work`; settings: of its trainer."""

    run: Callable[..., dict[str, Any]]
    settings: dict[str, Any] = {}


class Work(NamedTuple):
    """models: the folder of models and pairs; folder: for what is written; data: of `emotion.npz`; settings: of the trainer."""

    case: Case
    models: Path
    folder: Path
    data: Path
    device: str
    steps: int
    settings: dict[str, Any]

    @property
    def model(self) -> Path:
        return self.models / self.case.model


def loaded(work: Work) -> Any:
    """Return the model; with LoRA as peft wraps it."""
    import torch

    case = work.case
    _, kind = model_class(case.config)
    whole = case.method in ("full", "dpo")
    options: dict[str, Any] = {"dtype": torch.float32 if whole else torch.bfloat16}
    if case.method == "qlora":
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=False,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        options["device_map"] = {"": work.device}
    model = kind.from_pretrained(work.model, attn_implementation="sdpa", **options)
    if whole:
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if case.method == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM"))


def options_of(work: Work) -> dict[str, Any]:
    return {
        "output_dir": str(work.folder / "out"),
        "max_steps": work.steps,
        "per_device_train_batch_size": work.case.rows,
        "learning_rate": LEARNING_RATE,
        "bf16": True,
        "optim": "adamw_torch_fused",
        "logging_steps": work.steps,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 2,
        "dataloader_drop_last": True,
        "use_cpu": work.device == "cpu",
        **work.settings,
    }


def timed(work: Work, make: Callable[[Any], Any]) -> dict[str, Any]:
    """Train with the trainer that `make` returns for a list of callbacks."""
    import torch
    from transformers import TrainerCallback

    cuda, times = work.device == "cuda", dict[int, float]()

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step in (work.steps // 3, work.steps):
                if cuda:
                    torch.cuda.synchronize()
                times[state.global_step] = time.perf_counter()

    loss = make([Clock()]).train().metrics["train_loss"]
    (first, began), (last, ended) = sorted(times.items())
    memory = torch.cuda.max_memory_allocated() if cuda else 0
    return {"seconds": (ended - began) / (last - first), "memory": memory, "loss": loss}


def trainer(work: Work) -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments, default_data_collator

    rows = _rows(work)
    options, made = TrainingArguments(**options_of(work)), loaded(work)
    collator = default_data_collator if work.case.causal else _padded
    return timed(work, lambda clock: Trainer(made, options, collator, rows, callbacks=clock))


def _rows(work: Work) -> list[dict[str, Any]]:
    if work.case.causal:
        data = columns(work.case)
        return [{name: data[name][row] for name in ("input_ids", "labels")} for row in range(len(data["input_ids"]))]
    rows = tweets(work.case, work.data)[0]
    return [{"input_ids": ids, "labels": label} for ids, label in zip(rows.ids, rows.labels or (), strict=True)]


def trl(work: Work) -> dict[str, Any]:
    """TRL's trainer with packing; without an attention that knows documents it joins them and cuts."""
    made = loaded(work)
    return timed(work, lambda clock: _sft(work, made, clock))


def unsloth(work: Work) -> dict[str, Any]:
    import torch
    import unsloth

    case = work.case
    full = case.method == "full"
    made, _ = unsloth.FastLanguageModel.from_pretrained(
        str(work.model),
        max_seq_length=case.length,
        dtype=torch.bfloat16,
        load_in_4bit=case.method == "qlora",
        full_finetuning=full,
    )
    if not full:
        options = {"r": 16, "lora_alpha": 32, "target_modules": TARGETS, "use_gradient_checkpointing": False}
        made = unsloth.FastLanguageModel.get_peft_model(made, **options)
    return timed(work, lambda clock: _sft(work, made, clock))


def _sft(work: Work, made: Any, clock: list[Any]) -> Any:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    case = work.case
    documents = columns(case)["input_ids"].reshape(-1, case.length // case.documents).tolist()
    options = {
        **options_of(work), "max_length": case.length, "gradient_checkpointing": False, "packing": True,
        "packing_strategy": "wrapped",
    }  # fmt: skip
    rows, tokenizer = Dataset.from_dict({"input_ids": documents}), AutoTokenizer.from_pretrained(work.model)
    return SFTTrainer(made, SFTConfig(**options), train_dataset=rows, processing_class=tokenizer, callbacks=clock)


def dpo(work: Work) -> dict[str, Any]:
    """TRL's trainer of pairs, which computes the reference by a second model at each step, or beforehand."""
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    pairs, made = pairs_in(work.models), loaded(work)
    tokenizer = AutoTokenizer.from_pretrained(pairs.packed.path / "tokenizer")
    rows = load_dataset("json", data_files=str(pairs.file), cache_dir=str(work.folder / "rows"), split="train")
    batch = {"per_device_train_batch_size": pairs.an_update, "gradient_checkpointing": False}
    options = DPOConfig(**{**options_of(work), **batch}, max_length=LENGTH)
    return timed(
        work,
        lambda clock: DPOTrainer(made, args=options, train_dataset=rows, processing_class=tokenizer, callbacks=clock),
    )


def _padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad to the longest row of the batch, as DataCollatorWithPadding."""
    import torch

    longest = max(len(row["input_ids"]) for row in rows)
    ids, mask = (torch.zeros(len(rows), longest, dtype=torch.int64) for _ in range(2))
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        mask[number, : len(row["input_ids"])] = 1
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


WAYS = {
    "HF Trainer": Way(trainer),
    "HF Trainer by-length": Way(trainer, {"train_sampling_strategy": "group_by_length"}),
    "HF Trainer compile": Way(trainer, {"torch_compile": True}),
    "HF Trainer liger": Way(trainer, {"use_liger_kernel": True}),
    "TRL wrapped": Way(trl),
    "TRL liger": Way(trl, {"use_liger_kernel": True}),
    "TRL DPO": Way(dpo),
    "TRL DPO precomputed": Way(dpo, {"precompute_ref_log_probs": True}),
    "Unsloth": Way(unsloth),
}
