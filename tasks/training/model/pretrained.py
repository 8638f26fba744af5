"""Read pretrained weights: transformers' loader, and what it must not leave out."""

from __future__ import annotations

import inspect
from typing import Any

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.sources.model_source import model_folder
from trnflow.tasks.training.model.heads import in_head, refuse_unused
from trnflow.tasks.training.shared_types import StoredWeights

TOKEN_TYPES = "token_type_ids"


def auto_class(task: str) -> Any:
    import transformers

    return getattr(transformers, kind_of(task).auto_class)


def at_random(task: str, config: Any, source: Source, dtype: str) -> tuple[Any, tuple[str, ...]]:
    """Build a model in place of `load_pretrained`, for what no value decides: memory, and graphs."""
    return auto_class(task).from_config(config, **OPTIONS), ()


def load_pretrained(task: str, config: Any, source: Source, dtype: str) -> tuple[Any, tuple[str, ...]]:
    """Load a model in `dtype`; return it and the sorted parameters that the weights lack or have in another shape.

    These are initialised at random. Raises ModelError when one is not in the head, and when the files hold tensors that
    the model does not use.
    """
    import torch

    model, info = auto_class(task).from_pretrained(
        model_folder(source),
        config=config,
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **OPTIONS,
    )
    refuse_unused(model, info["unexpected_keys"], source)
    return _checked(source, model, info)


def blank_model(empty: Any, source: Source, stored: StoredWeights) -> tuple[Any, tuple[str, ...]]:
    """Return what `load_pretrained` does in fp32, but with parameters that hold one number: no value is read.

    empty: the model on "meta". Buffers, and what `stored` lacks, are as `load_pretrained` makes them.
    """
    import torch

    # transformers' loader decides what is missing, tied or of another shape, and initialises it with the same draws
    zero = torch.zeros(())
    values = {name: zero.expand(stored.shape(name)) for name, _ in empty.named_parameters() if stored.has(name)}
    values |= {name: stored.tensor(name) for name in empty.state_dict().keys() & _buffers(empty) if stored.has(name)}
    return _checked(
        source,
        *type(empty).from_pretrained(
            None,
            config=empty.config,
            state_dict=values,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            attn_implementation=OPTIONS["attn_implementation"],
        ),
    )


def _buffers(model: Any) -> set[str]:
    return {name for name, _ in model.named_buffers()}


def _checked(source: Source, model: Any, info: Meta) -> tuple[Any, tuple[str, ...]]:
    """Return the model and what the weights lack. Raises ModelError when that is not in the head."""
    lacking = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    body = sorted(name for name in lacking if not in_head(name))
    if body:
        what = "train.warm_start_from" if "warm_start" in source.location else "model.source"
        raise ModelError(
            f"the weights of {what} lack {len(body)} tensors of {type(model).__name__}, such as {body[0]}",
            f"check model.overrides and the architecture against it, or drop {what}",
        )
    return model, tuple(sorted(lacking))


# Python code beside the weights is never run: no key would contain it
OPTIONS: Meta = {"attn_implementation": "sdpa", "trust_remote_code": False}
"""Options with which every model is built."""


def first_position(model: Any) -> int:
    """Return the position id of a row's first token: the pad id + 1 for RoBERTa, else 0."""
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx) + 1
    return 0


def takes_token_types(model: Any) -> bool:
    """Return whether a model embeds more than one type of token, as BERT does."""
    # GPT-2 takes the argument, too, and looks it up among its words
    known = TOKEN_TYPES in inspect.signature(type(model).forward).parameters
    return known and getattr(model.config, "type_vocab_size", 0) > 1
