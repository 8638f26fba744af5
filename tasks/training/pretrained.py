"""Pretrained weights, and what is new in a model that starts from them: its head."""

from __future__ import annotations

from typing import Any

from tasks.artifact import Meta, Source
from tasks.errors import ModelError
from tasks.model_source import model_folder

HEADS = ("classifier", "pre_classifier", "score", "pooler", "dropout")


def auto_class(task: str) -> Any:
    import transformers

    if task == "classification":
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForCausalLM


def load_pretrained(task: str, config: Any, source: Source, **options: Any) -> tuple[Any, tuple[str, ...]]:
    """(the model in fp32 on the CPU, the parameters that the weights lack: made at random, and all of its head)."""
    import torch

    model, found = auto_class(task).from_pretrained(
        model_folder(source),
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **options,
    )
    lacking = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    body = sorted(name for name in lacking if not in_head(name))
    if body:
        what = "train.warm_start_from" if "warm_start" in source.location else "model.source"
        raise ModelError(
            f"the weights of {what} lack {len(body)} tensors of {type(model).__name__}, such as {body[0]}",
            f"check model.overrides and the architecture against it, or drop {what}",
        )
    return model, tuple(sorted(lacking))


def options_of(source: Source) -> Meta:
    """How every model is built."""
    return {"attn_implementation": "sdpa", "trust_remote_code": source.location["trust_remote_code"]}


def in_head(name: str) -> bool:
    """Whether a parameter or module belongs to a classifier's head, by its name alone: what a graph trains is known before
    any weights are."""
    return any(part in HEADS for part in name.split("."))
