"""The programs beside which `gpu` measures engine native: HF Trainer, TRL and Unsloth, each as its users run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tests.bench.gpu import Case

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Way(NamedTuple):
    """run: gets `Work`; cases: for which it exists; settings: of its trainer."""

    run: Callable[..., dict[str, Any]]
    cases: tuple[str, ...]
    settings: dict[str, Any] = {}


class Work(NamedTuple):
    """model: the folder of the weights; folder: for what is written; data: packed rows; settings: of the trainer."""

    case: Case
    model: Path
    folder: Path
    data: dict[str, np.ndarray]
    device: str
    steps: int
    settings: dict[str, Any]


def model_class(fields: dict[str, Any]) -> tuple[Any, Any]:
    """Return (transformers' config, its auto class)."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    causal = fields["model_type"] == "llama"
    config = AutoConfig.for_model(**fields, use_cache=False, **({} if causal else {"num_labels": 6}))
    return config, AutoModelForCausalLM if causal else AutoModelForSequenceClassification


def loaded(work: Work) -> Any:
    """Return the model; with LoRA as peft wraps it."""
    import torch

    case = work.case
    _, kind = model_class(case.model)
    options: dict[str, Any] = {"dtype": torch.float32 if case.method == "full" else torch.bfloat16}
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
    if case.method == "full":
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

    causal, data = work.case.model["model_type"] == "llama", work.data
    sizes = data["segment_ids"].astype(bool).sum(1)
    rows = [
        {"input_ids": ids[:size], "labels": label}
        for ids, label, size in zip(data["input_ids"], data["labels"], sizes, strict=True)
    ]
    options = TrainingArguments(**options_of(work))
    made, collator = loaded(work), default_data_collator if causal else _padded
    return timed(work, lambda clock: Trainer(made, options, collator, rows, callbacks=clock))


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
    from trl import SFTConfig, SFTTrainer

    case = work.case
    documents = work.data["input_ids"].reshape(-1, case.length // case.documents).tolist()
    options = {
        **options_of(work), "max_length": case.length, "gradient_checkpointing": False, "packing": True,
        "packing_strategy": "wrapped",
    }  # fmt: skip
    rows = Dataset.from_dict({"input_ids": documents})
    return SFTTrainer(made, SFTConfig(**options), train_dataset=rows, processing_class=_tokenizer(), callbacks=clock)


def _tokenizer() -> Any:
    """Return any tokenizer: rows are ids already."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, "a")), eos_token="b", pad_token="a", unk_token="a"
    )


def _padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad to the longest row of the batch, as DataCollatorWithPadding."""
    import torch

    longest = max(len(row["input_ids"]) for row in rows)
    ids, mask = (torch.zeros(len(rows), longest, dtype=torch.int64) for _ in range(2))
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])] = torch.from_numpy(row["input_ids"].astype(np.int64))
        mask[number, : len(row["input_ids"])] = 1
    labels = torch.tensor([int(row["labels"]) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


TEXT = ("llama", "packed", "lora", "qlora")
WAYS = {
    "HF Trainer": Way(trainer, (*TEXT, "bert")),
    "HF Trainer compile": Way(trainer, (*TEXT, "bert"), {"torch_compile": True}),
    "HF Trainer liger": Way(trainer, TEXT, {"use_liger_kernel": True}),
    "TRL": Way(trl, TEXT),
    "TRL liger": Way(trl, TEXT, {"use_liger_kernel": True}),
    "Unsloth": Way(unsloth, TEXT),
}
