"""Other training tools' names for settings, for hints in errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trnflow.flows.recipes.schema import config_in

OTHER_NAMES = {
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "eps",
    "batch_size": "global_batch",
    "bf16": "dtype",
    "block_size": "chunk_length",
    "clip_grad_norm": "max_grad_norm",
    "context_length": "chunk_length",
    "dataset": "data.source",
    "dataset_name": "data.source",
    "early_stopping": "early_stopping_patience",
    "eval_steps": "eval_every",
    "fp16": "dtype",
    "gradient_accumulation_steps": "global_batch",
    "gradient_checkpointing": "remat",
    "gradient_clip_val": "max_grad_norm",
    "label_smoothing_factor": "label_smoothing",
    "load_best_model_at_end": "keep_best",
    "logging_steps": "log_every",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "lora_r": "lora.rank",
    "lr": "learning_rate",
    "lr_scheduler_type": "schedule",
    "max_epochs": "epochs",
    "max_length": "tokenize.max_length",
    "max_seq_length": "tokenize.max_length",
    "metric_for_best_model": "best_metric",
    "mixed_precision": "dtype",
    "model_max_length": "tokenize.max_length",
    "model_name": "model.source",
    "model_name_or_path": "model.source",
    "nproc_per_node": "devices",
    "num_epochs": "epochs",
    "num_gpus": "devices",
    "num_train_epochs": "epochs",
    "optim": "optimizer",
    "output_dir": "store.root",
    "packing": "pack.strategy",
    "per_device_eval_batch_size": "evaluate.batch",
    "per_device_train_batch_size": "micro_batch",
    "precision": "dtype",
    "pretrained_model_name_or_path": "model.source",
    "r": "lora.rank",
    "random_seed": "seed",
    "report_to": "tracking.enabled",
    "save_steps": "checkpoint_every",
    "save_total_limit": "keep_checkpoints",
    "seq_length": "chunk_length",
    "sequence_length": "chunk_length",
    "target_modules": "lora.targets",
    "tp_size": "tensor_parallel_size",
    "train_batch_size": "global_batch",
    "val_check_interval": "eval_every",
    "warmup_steps": "warmup_ratio",
}
"""{setting of transformers, peft, trl, Lightning or accelerate: the end of its dotted name here}"""

NOTES = {
    "bf16": "set it to bfloat16",
    "fp16": "bfloat16 is the only narrow type",
    "gradient_accumulation_steps": "micro_batch sequences are accumulated up to global_batch",
    "mixed_precision": "bfloat16 or float32",
    "per_device_train_batch_size": "global_batch counts all devices together",
    "warmup_steps": "a fraction of all steps",
}
"""{another tool's setting: a note, where ours takes another kind of value}"""


def suggested(path: tuple[str, ...], root: Any) -> str:
    """Return the setting that an unknown name probably means, such as `train.learning_rate`; several are joined by
    `or`."""
    name = path[-1]
    wanted = OTHER_NAMES.get(name, name)
    matches = [known for known in _names(root) if known == wanted or known.endswith(f".{wanted}")]
    inside = [known for known in matches if known.split(".")[0] in ("train", path[0])]
    choice = " or ".join(inside if len(inside) == 1 else matches)
    return f"{choice} ({NOTES[name]})" if choice and name in NOTES else choice


def _names(kind: Any, above: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings of a config class, sections included."""
    for name, field in kind.model_fields.items():
        yield f"{above}{name}"
        inner = config_in(field.annotation)
        if inner is not None:
            yield from _names(inner, f"{above}{name}.")
