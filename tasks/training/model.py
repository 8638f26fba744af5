"""The model under training: built from its source and the packed artifact, fed with batches.

A config comes from the recipe alone (pretrained config with overrides, or from scratch), so that precompile and train
build the same graph; weights come from safetensors, never from pickles. What the weights lack (a new head) is made from
the seed. Fails with ModelError, naming the setting, where model and rows do not fit.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.artifact import Input, Meta, Source
from tasks.errors import ModelError
from tasks.model_source import model_folder
from tasks.training.pretrained import auto_class, load_pretrained, options_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Built:
    """model: on the CPU, or on "meta" when it is only traced; causal: each position sees the ones before it, in its segment;
    first_position: the position id of a row's first token (RoBERTa: pad id + 1); config: of the model as it is published;
    lacking: the parameters that the weights did not hold, made from the seed; frozen: those that are not trained; class_weights:
    see `objective`; attention: what keeps a row's segments apart, see `attention`."""

    model: Any
    task: str
    causal: bool
    first_position: int
    config: Meta
    lacking: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()
    class_weights: tuple[float, ...] | None = None
    attention: str = "sdpa"

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All of them, tied ones once, by name."""
        return dict(self.model.named_parameters())

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Those that have a gradient, a master and moments, in the same order."""
        return {name: parameter for name, parameter in self.parameters().items() if name not in self.frozen}


def build(source: Source, packed: Input, *, seed: int, weights: bool) -> Built:
    """weights: False traces only: the model stands on "meta" and holds nothing."""
    import torch

    config = configured(source, packed.meta)
    kind, options = auto_class(packed.meta["task"]), options_of(source)
    torch.manual_seed(seed)
    lacking: tuple[str, ...] = ()
    if not weights:
        with torch.device("meta"):
            model = kind.from_config(config, **options)
    elif source.identity["weights"] is None:
        model = kind.from_config(config, **options)
    else:
        model, lacking = load_pretrained(packed.meta["task"], config, source, **options)
    model.config.architectures = [type(model).__name__]
    published = {**model.config.to_diff_dict(), "dtype": "float32"}
    model.config.use_cache = False
    built = Built(model, packed.meta["task"], _is_causal(config), _first_position(model), published, lacking)
    _check_positions(built, packed.meta["lengths"])
    return built


def configured(source: Source, meta: Meta) -> Any:
    """The model's config: pretrained or from scratch, with the recipe's overrides and what the rows decide."""
    from transformers import AutoConfig

    pretrained, overrides = source.identity["config"]["pretrained"], source.identity["config"]["overrides"]
    if pretrained is not None and "auto_map" in pretrained and source.location["trust_remote_code"]:
        config = AutoConfig.from_pretrained(model_folder(source), trust_remote_code=True, **overrides)
    else:
        config = _config({**(pretrained or {}), **overrides}, overrides)
    _fit_vocabulary(config, meta, scratch=pretrained is None)
    _fit_labels(config, meta)
    return config


def inputs_of(built: Built, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor) -> dict[str, Any]:
    """int [rows, length] each -> keyword arguments of `forward`."""
    import torch

    positions = position_ids + built.first_position
    if built.first_position:  # RoBERTa gives padding a position of its own, the pad id
        positions = torch.where(segment_ids != 0, positions, built.first_position - 1)
    return {"input_ids": input_ids.long(), "position_ids": positions.long(), **_apart(built, segment_ids)}


def _apart(built: Built, segment_ids: Tensor) -> dict[str, Any]:
    """What keeps segments apart."""
    if built.attention == "sdpa":
        return {"attention_mask": _mask(built, segment_ids)}
    from tasks.training.attention import blocks_of, documents_of

    if built.attention == "documents":
        return {"attention_mask": None, "documents": documents_of(segment_ids)}
    return {"attention_mask": blocks_of(segment_ids)}


def _mask(built: Built, segment_ids: Tensor) -> Tensor:
    """Float [rows, 1, 1 or length, length], 0 where attended. It is finite, so that padding, which attends to nothing but
    padding, makes no NaN."""
    import torch

    if built.causal:
        length = segment_ids.shape[1]
        order = torch.arange(length, device=segment_ids.device)
        seen = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (order[:, None] >= order[None, :])
    else:
        seen = (segment_ids != 0)[:, None, :]
    dtype = next(built.model.parameters()).dtype
    hidden = torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)
    return hidden[:, None]


def logits_of(built: Built, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor) -> Tensor:
    """float32 [rows, labels] or [rows, length, vocabulary]."""
    logits: Tensor = built.model(**inputs_of(built, input_ids, segment_ids, position_ids)).logits
    return logits.float()


def checkpointed_layers(model: Any, every: int = 1) -> list[Any]:
    """The layers whose activations remat computes again: every n-th. ModelError when the model marks none, or fewer than n."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(f"{type(model).__name__} marks no layers to recompute", "set train.remat=false")
    if every > len(layers):
        raise ModelError(
            f"train.remat is {every}, and {type(model).__name__} has {len(layers)} layers",
            f"set train.remat to at most {len(layers)}, true (each layer) or false",
        )
    return layers[every - 1 :: every]


def _config(fields: Meta, overrides: Meta) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = fields.get("model_type")
    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(str(model_type), list(CONFIG_MAPPING), n=1)
        fix = f"use {near[0]}" if near else "set model.trust_remote_code=true if the model brings its own code"
        raise ModelError(f"transformers knows no model_type {model_type!r}", fix)
    known = AutoConfig.for_model(model_type)
    for name in overrides:
        if not hasattr(known, name):
            near = difflib.get_close_matches(name, vars(known), n=1)
            raise ModelError(f"model.config.{name}: {model_type} has no such field", f"use {near[0]}" if near else "")
    return AutoConfig.for_model(**fields)


def _fit_vocabulary(config: Any, meta: Meta, *, scratch: bool) -> None:
    if scratch:
        config.vocab_size = meta["vocab_size"]
        config.bos_token_id, config.eos_token_id = meta["bos_id"], meta["eos_id"]
        # an embedding is not trained at the pad id: eos in its place must not be one
        config.pad_token_id = meta["pad_id"] if meta["pad_id"] != meta["eos_id"] else None
    elif meta["vocab_size"] > config.vocab_size:
        raise ModelError(
            f"the rows use a vocabulary of {meta['vocab_size']}, the model holds {config.vocab_size}",
            "use the model's own tokenizer (leave model.tokenizer out)",
        )
    if config.pad_token_id is None and meta["task"] == "classification":
        config.pad_token_id = meta["pad_id"]


def _fit_labels(config: Any, meta: Meta) -> None:
    if meta["task"] == "classification":
        config.id2label = dict(enumerate(meta["labels"]))
        config.label2id = {label: index for index, label in enumerate(meta["labels"])}
        config.problem_type = "single_label_classification"
    elif getattr(config, "is_decoder", None) is False and not _is_causal(config):
        raise ModelError(
            f"a {config.model_type} sees both ways and writes no text", "use a causal model, such as Llama"
        )


def _is_causal(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    return bool(getattr(config, "is_decoder", False)) or (
        config.model_type in CAUSAL and config.model_type not in MASKED
    )


def _first_position(model: Any) -> int:
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx) + 1
    return 0


def _check_positions(built: Built, lengths: list[int]) -> None:
    limit = getattr(built.model.config, "max_position_embeddings", None)
    if limit is not None and max(lengths) + built.first_position > limit:
        raise ModelError(
            f"rows of {max(lengths)} tokens, but {type(built.model).__name__} has {limit - built.first_position} positions",
            "lower tokenize.max_length and pack.chunk_length (or raise model.config.max_position_embeddings from scratch)",
        )
    window = getattr(built.model.config, "sliding_window", None)
    if window is not None and getattr(built.model.config, "use_sliding_window", True) and max(lengths) > window:
        raise ModelError(
            f"rows of {max(lengths)} tokens, but {type(built.model).__name__} attends to {window} at a time (sliding_window), "
            "and here a position sees all before it",
            "lower pack.chunk_length to the window",
        )
