"""Build the model under training, and compute its logits.

Weights come from safetensors alone; parameters that they lack (a new head) are initialised from the seed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.sources.model_source import check_weights
from trnflow.tasks.training.config import check_positions, positions_needed
from trnflow.tasks.training.model.masks import (
    attention_masks,
    check_attention,
    check_sdpa,
    mask_below_head,
    pools_positions,
    window_of,
)
from trnflow.tasks.training.model.pretrained import (
    OPTIONS,
    TOKEN_TYPES,
    at_random,
    auto_class,
    blank_model,
    first_position,
    load_pretrained,
    takes_token_types,
)
from trnflow.tasks.training.own_head import ACTIVATIONS
from trnflow.tasks.training.shared_types import Built, StoredWeights

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta


def build(
    source: Source,
    packed: Input[PackedMeta],
    *,
    seed: int,
    weights: bool,
    dtype: str = "float32",
    opens: Callable[[Any], StoredWeights] | None = None,
    loads: Callable[[str, Any, Source, str], tuple[Any, tuple[str, ...]]] = load_pretrained,
) -> Built:
    """Build the model of `source`, with vocabulary and labels as `packed` needs.

    weights: False builds on "meta", for tracing. dtype: of pretrained weights. opens: gets the model on "meta", and
    returns the weights that are to be read later (`Built.stored`). loads: reads all now. Raises ModelError, naming the
    setting, when model and rows do not fit.
    """
    # from the recipe alone, so that precompile and train build the same graph
    config = model_config(source, packed.meta)
    if weights and loads is not at_random:
        check_weights(source)  # of a hub's model, `plan` has read no file
    kind = auto_class(packed.meta["task"])
    check_sdpa(kind, config)
    torch.manual_seed(seed)
    lacking: tuple[str, ...] = ()
    stored = None
    if not weights or opens is not None:
        with torch.device("meta"):
            model = kind.from_config(config, **OPTIONS)
        if opens is not None:
            stored = opens(model)
            model, lacking = blank_model(model, source, stored)
    elif source.identity["weights"] is None:
        model = kind.from_config(config, **OPTIONS)
    else:
        model, lacking = loads(packed.meta["task"], config, source, dtype)
    model.config.architectures = [type(model).__name__]
    published = {**model.config.to_diff_dict(), "dtype": "float32"}
    model.config.use_cache = False
    causal, lengths = _is_causal(config), packed.meta["lengths"]
    windowed = window_of(config.get_text_config(), max(lengths)) is not None
    first, pair = first_position(model), packed.meta.get("pair", False)
    built = Built(
        model, packed.meta["task"], causal, first, published, lacking, stored,
        windowed=windowed, pair=pair, head=packed.meta.get("head", {}),
        new_tokens=tuple(packed.meta.get("new_tokens") or ()),
    )  # fmt: skip
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and (needed := positions_needed(packed.meta)) is not None:
        check_positions(needed, limit - built.first_position, type(model).__name__)
    check_attention(model, lengths, packed.meta)
    if built.kind.pairs and built.kind.per_row and type(getattr(model, "score", None)) is not torch.nn.Linear:
        raise ModelError(
            f"{type(model).__name__} has no linear head `score`, which train.objective=reward reads",
            "choose a Llama, Mistral, Qwen, Gemma or another language model with one, or train.objective=dpo",
        )
    if _pools(built.kind, model.config):
        mask_below_head(model, causal=causal)
    return built


def model_config(source: Source, meta: PackedMeta) -> Any:
    """Return transformers' config of `source` with the recipe's overrides, vocabulary size and labels."""
    config = architecture(source)
    _fit_vocabulary(config.get_text_config(), meta, scratch=source.identity["config"]["pretrained"] is None)
    _fit_labels(config, meta)
    return config


def inputs_of(
    built: Built, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor, documents: Tensor | None = None
) -> dict[str, Any]:
    """Return the keyword arguments of the model's `forward`.

    All tensors: int [rows, length]; segment 0 is padding. documents: `bounds_of`, for attention "varlen"; without it the
    device is waited for.
    """
    positions = position_ids + built.first_position
    if built.first_position:  # for RoBERTa, the position of padding is the pad id
        positions = torch.where(segment_ids != 0, positions, built.first_position - 1)
    types = {}
    if built.pair:  # the texts are one segment; padding has type 0
        if takes_token_types(built.model):
            types = {TOKEN_TYPES: (segment_ids - 1).clamp(min=0).long()}
        segment_ids = segment_ids.clamp(max=1)
    attention = _attention_inputs(built, segment_ids, documents)
    return {"input_ids": input_ids.long(), "position_ids": positions.long(), **types, **attention}


def _attention_inputs(built: Built, segment_ids: Tensor, documents: Tensor | None) -> dict[str, Any]:
    """Return what keeps segments apart: a mask, or the documents' lengths or bounds."""
    if built.attention == "sdpa":
        config, dtype = built.model.config, next(built.model.parameters()).dtype
        if _pools(built.kind, config):
            return {"attention_mask": segment_ids}
        config = config.get_text_config()
        apart = built.kind.apart
        return {"attention_mask": attention_masks(config, segment_ids, causal=built.causal, dtype=dtype, apart=apart)}
    from trnflow.tasks.training.model.attention import bounds_of, document_lengths

    if built.attention == "documents":
        return {"attention_mask": None, "documents": document_lengths(segment_ids)}
    return {"attention_mask": None, "documents": bounds_of(built, segment_ids) if documents is None else documents}


def _pools(kind: Kind, config: Any) -> bool:
    return kind.per_row and not kind.per_position and not kind.apart and pools_positions(config)


def logits_of(built: Built, *columns: Tensor) -> Tensor:
    """Return float32 [rows, labels], of positions [rows, length, labels], of a language model [rows, length, vocabulary],
    of an embedding [rows, texts x numbers]. columns: as `inputs_of`."""
    output = built.model(**inputs_of(built, *columns))
    return built.kind.logits_of(output, columns[1], built.head).float()


def layers_of(model: Any) -> list[Any]:
    """Return the model's transformer layers, as transformers marks them for remat; [] for a model that marks none."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def checkpointed_layers(model: Any, every: int = 1, setting: str = "remat") -> list[Any]:
    """Return every n-th of `layers_of`, for `train.<setting>`. Raises ModelError when there are too few."""
    layers = layers_of(model)
    if not layers:
        raise ModelError(f"{type(model).__name__} marks no layers", f"set train.{setting}=false")
    if every > len(layers):
        raise ModelError(
            f"train.remat is {every}, and {type(model).__name__} has {len(layers)} layers",
            f"set train.remat to at most {len(layers)}, true (each layer) or false",
        )
    return layers[every - 1 :: every]


def architecture(source: Source) -> Any:
    """Return transformers' config of `source` with the recipe's overrides. Raises ModelError for an unknown model or
    field."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    overrides = source.identity["config"]["overrides"]
    fields = {**(source.identity["config"]["pretrained"] or {}), **overrides}
    model_type = fields.get("model_type")
    if model_type not in CONFIG_MAPPING:
        if "auto_map" in fields:
            raise ModelError(
                f"the model needs its own code for model_type {model_type!r}, which trnflow does not run because no "
                "key would contain it",
                "set model.source to a model whose model_type transformers knows",
            )
        near = difflib.get_close_matches(str(model_type), list(CONFIG_MAPPING), n=1)
        fix = f"use {near[0]}" if near else "set model.source to a model whose model_type transformers knows"
        raise ModelError(f"transformers knows no model_type {model_type!r}", fix)
    known = AutoConfig.for_model(model_type)
    for name in overrides:
        if not hasattr(known, name):
            near = difflib.get_close_matches(name, vars(known), n=1)
            raise ModelError(f"model.config.{name}: {model_type} has no such field", f"use {near[0]}" if near else "")
    # code beside the weights, which trnflow neither runs nor publishes, and what a cross-encoder made of other logits
    for name in ("auto_map", *ACTIVATIONS):
        fields.pop(name, None)
    return AutoConfig.for_model(**fields)


def _fit_vocabulary(config: Any, meta: PackedMeta, *, scratch: bool) -> None:
    """Set vocabulary and special tokens in the language model's config."""
    if scratch:
        config.vocab_size = meta["vocab_size"]
        config.bos_token_id, config.eos_token_id = meta["bos_id"], meta["eos_id"]
        # PyTorch does not train the embedding of the pad id, so eos must not be the pad id
        config.pad_token_id = meta["pad_id"] if meta["pad_id"] != meta["eos_id"] else None
    elif meta.get("new_tokens"):
        config.vocab_size = max(config.vocab_size, meta["vocab_size"])
    elif meta["vocab_size"] > config.vocab_size:
        raise ModelError(
            f"the rows use a vocabulary of {meta['vocab_size']}, the model holds {config.vocab_size}",
            "use the model's own tokenizer (leave model.tokenizer out)",
        )
    if kind_of(meta["task"]).per_row and (config.pad_token_id is None or _is_causal(config)):
        # a causal classifier's head looks for a row's last token that is not this one
        config.pad_token_id = meta["pad_id"]


def _fit_labels(config: Any, meta: PackedMeta) -> None:
    kind = kind_of(meta["task"])
    if kind.per_row:
        labels = meta["labels"] or []
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
        config.problem_type = kind.problem_type
        if kind.problem_type == "regression":
            # else the CrossEncoder of sentence-transformers shows one number's sigmoid
            config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
    if (kind.pairs or not kind.per_row) and getattr(config, "is_decoder", None) is False and not _is_causal(config):
        raise ModelError(
            f"a {config.model_type} attends in both directions and generates no text",
            "use a causal model, such as Llama",
        )


def _is_causal(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    known = config.model_type in CAUSAL and config.model_type not in MASKED
    return (bool(getattr(config, "is_decoder", False)) or known) and getattr(config, "is_causal", True) is not False
