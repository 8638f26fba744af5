"""Choose which parameters are trained, and freeze the others, for the values of `train.method`.

LoRA's layers are peft's, put into the model in place. A classifier's head is trained in place, and published as peft's
`modules_to_save`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.model.heads import HEADS, begin_at_means, in_head
from trnflow.tasks.training.model.lora import (
    PARTS,
    A,
    B,
    check_rank,
    in_layers,
    matching_layers,
    original_base,
    target_modules,
    values_by_layer,
)
from trnflow.tasks.training.model.named_parts import has_part, parts_named
from trnflow.tasks.training.model.quantised import body_layers, quantise, quantised_layers
from trnflow.tasks.training.objective import class_weights, refuse_batches
from trnflow.tasks.training.settings.lora import ALL_LINEAR, LoraConfig
from trnflow.tasks.training.shared_types import Built

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta


LARGE = 0.1
"""The share of the weights that "all-linear" leaves, from which it is remarked."""


def adapt(config: TrainConfig, built: Built) -> Built:
    """Return `built` with LoRA's layers, and frozen what `train.method` does not train; the model changes in place.

    Raises ModelError when LoRA's targets or `train.freeze` name nothing, or the head to be trained is missing.
    """
    if config.method == "full" and not config.freeze:
        return built
    whole = _saved_whole(config, built)
    if config.lora is not None:
        # LoRA's matrices follow from the seed alone
        torch.manual_seed(config.seed)
        frozen = [layer for layer in quantised_layers(built.model) if f"{layer}.weight" not in whole]
        _inject(config.lora, built, whole)
        if config.lora.base_dtype is not None:
            quantise(built.model, frozen, config.lora.base_dtype, getattr(torch, config.dtype), trained=whole)
    # by names, never by weights, so that precompile and train choose the same
    wanted = _trained_names(config, built) | whole
    _check_new_tokens(config, built, wanted)
    for name, parameter in built.parameters().items():
        parameter.requires_grad_(name in wanted)
        if name in wanted:  # peft gave LoRA's the dtype of the base, and masters are copied from them
            parameter.data = parameter.data.float()
    return replace(built, frozen=frozenset(built.parameters().keys() - wanted), initial=_initial(config, built))


def _saved_whole(config: TrainConfig, built: Built) -> set[str]:
    """Return the parameters of `modules_to_save`, and of a classifier its head."""
    names = list(built.parameters())
    heads = {name for name in names if in_head(name)} if config.lora and _has_head(built) else set[str]()
    patterns = config.lora.modules_to_save if config.lora else ()
    return heads | parts_named(patterns, names, type(built.model).__name__, "train.lora.modules_to_save").keys()


def _initial(config: TrainConfig, built: Built) -> dict[str, torch.Tensor]:
    """Return copies of A and B if the base lacks what they begin with."""
    if config.lora is None or not config.lora.changes_base or next(built.model.parameters()).is_meta:
        return {}
    return {n: p.detach().clone() for n, p in built.parameters().items() if n.rpartition(".")[0].endswith((A, B))}


def remarks_of_method(config: TrainConfig, built: Built) -> Iterator[str]:
    """Yield what the settings of a method reach that their names do not say."""
    yield from left_by_lora(config, built)
    yield from shared_with_head(config, built)


def shared_with_head(config: TrainConfig, built: Built) -> Iterator[str]:
    """Yield a remark for each setting that names an embedding whose weights are the output layer's, too."""
    table, head = built.model.get_input_embeddings(), built.model.get_output_embeddings()
    if head is None or head.weight is not table.weight:
        return
    name = next(name for name, parameter in built.parameters().items() if parameter is table.weight)
    for setting in ("freeze", "learning_rate_mapping"):
        if any(has_part(name.split("."), pattern) for pattern in getattr(config, setting)):
            yield f"train.{setting} names {name}, whose weights the output layer shares: it holds for that, too"


def left_by_lora(config: TrainConfig, built: Built) -> Iterator[str]:
    """Yield a remark if "all-linear" leaves a large part of the model: experts, which are joined in one tensor."""
    if config.lora is None or config.lora.targets != ALL_LINEAR:
        return
    # modules_to_save may name experts, which are trained then
    left = {name: parameter for name, parameter in built.parameters().items() if name in built.frozen}
    joined = {name: parameter.numel() for name, parameter in left.items() if parameter.dim() > 2}
    if sum(joined.values()) >= LARGE * built.numbers:
        yield (
            f"train.lora.targets={ALL_LINEAR} adapts no experts: {sum(joined.values()) / built.numbers:.0%} of the weights, such "
            f"as {next(iter(joined))}, lie in no linear layer and stay as they are"
        )


def loaded_dtype(config: TrainConfig, task: str) -> str:
    """Return the dtype in which pretrained weights are read: of a quantised base that from which it is quantised, which
    may halve the host's memory; else fp32, since trained weights are masters."""
    quantises = config.lora is not None and config.lora.base_dtype is not None
    return config.dtype if quantises and not kind_of(task).per_row else "float32"


def reads_parts(config: TrainConfig) -> bool:
    """Return whether each rank reads only its parts of the weights."""
    # what adapters are made from must be whole; engine xla has no ranks that hold parts
    return config.engine == "native" and (config.lora is None or not config.lora.reads_base)


def prepared(config: TrainConfig, built: Built, packed: PackedMeta, train: Split | None = None) -> Built:
    """Return `built` adapted and with class weights; train: None when only graphs are traced."""
    if built.kind.apart:
        refuse_batches(config)  # micro_batch=auto has its number only now
    if train is not None:
        begin_at_means(built, train)
    return replace(adapt(config, built), class_weights=class_weights(config, packed, train))


def adapter_document(built: Built) -> Meta:
    """Return peft's `adapter_config.json`, without `base_model_name_or_path`."""
    document = built.model.peft_config["default"].to_dict()
    whole = [name for name in built.trained() if not name.rpartition(".")[0].endswith(PARTS)]
    # of a head the part's name, as peft has it
    saved = {
        part
        for name in whole
        for part in ([p for p in name.split(".") if p in HEADS] if in_head(name) else [name.rpartition(".")[0]])
    }
    sets = {name: sorted(value) for name, value in document.items() if isinstance(value, set)}
    places = [id(parameter) for _, parameter in built.model.named_parameters(remove_duplicate=False)]
    tied = any(places.count(id(built.trained()[name])) > 1 for name in whole)
    mine = {"modules_to_save": sorted(saved) or None, "task_type": built.kind.adapter, "inference_mode": True}
    own = {**document, **sets, **mine, "ensure_weight_tying": tied, "peft_type": "LORA"}
    return original_base(own) if built.initial else own


def forward_passes(built: Built) -> float:
    """Return a training step's cost in forward passes: 3 when all parameters are trained."""
    trained = built.trained()
    share = sum(parameter.numel() for parameter in trained.values()) / built.numbers
    # the backward pass of the method head skips the layers below it
    back = 1.0 if not built.frozen or any(A in name for name in trained) else share
    return 1.0 + back + share


def _trained_names(config: TrainConfig, built: Built) -> set[str]:
    names = built.parameters()
    if config.method == "full":
        return names.keys() - _frozen_names(config.freeze, built)
    lora = {name for name in names if name.rpartition(".")[0].endswith(PARTS)}
    if _has_head(built):
        head = {name for name in names if in_head(name)}
        if not head:
            raise ModelError(
                f"{type(built.model).__name__} has no head by a known name ({', '.join(HEADS)})",
                "set train.method=full",
            )
        return lora | head
    return lora if config.method == "lora" else _output_layer(built)


def _has_head(built: Built) -> bool:
    """Return whether the model ends in a classifier's head: that of embeddings has none."""
    return built.kind.per_row and not built.kind.apart


def _frozen_names(patterns: tuple[str, ...], built: Built) -> set[str]:
    """Return the parameters below the parts that `patterns` name. Raises ModelError when nothing is left to train."""
    names = built.parameters()
    frozen = set(parts_named(patterns, list(names), type(built.model).__name__, "train.freeze"))
    if frozen >= names.keys():
        raise ModelError("train.freeze: nothing of the model is left to train", "leave a part out")
    return frozen


def _output_layer(built: Built) -> set[str]:
    head = built.model.get_output_embeddings()
    own = {id(parameter) for parameter in head.parameters()} if head is not None else set()
    if not own or head.weight is built.model.get_input_embeddings().weight:
        raise ModelError(
            f"{type(built.model).__name__} has no head of its own to train: its output layer shares the "
            "weights of the input embedding",
            "set train.method=lora or full, or model.overrides.tie_word_embeddings=false",
        )
    return {name for name, parameter in built.parameters().items() if id(parameter) in own}


def _check_new_tokens(config: TrainConfig, built: Built, trained: Collection[str]) -> None:
    """Raise ModelError if the rows of new tokens are not trained, or can't be as LoRA's."""
    if not built.new_tokens:
        return
    table = next(name for name, module in built.model.named_modules() if module is built.model.get_input_embeddings())
    if not any(name.startswith(f"{table}.") for name in trained):
        raise ModelError(
            f"tokenize.new_tokens have rows in {table}, which train.{'freeze' if config.freeze else f'method={config.method}'} "
            "does not train: they would stay one like the other",
            "set train.method=lora or full, and leave the embeddings out of train.freeze",
        )
    if config.lora is not None and config.tensor_parallel_size > 1:
        raise ModelError(
            "tokenize.new_tokens with LoRA puts trained rows among frozen ones, which tensor_parallel_size splits",
            "set train.tensor_parallel_size=1, or train.method=full",
        )


def _new_rows(built: Built, whole: Collection[str]) -> dict[str, list[int]]:
    """Return {layer: ids of the new tokens} of the embedding, and of a head of its own, unless they are in `whole`."""
    table, head = built.model.get_input_embeddings(), built.model.get_output_embeddings()
    layers = [table] if head is None or head.weight is table.weight else [table, head]
    names = {name for name, module in built.model.named_modules() if any(module is layer for layer in layers)}
    rows = {name: [*built.new_tokens] for name in sorted(names) if built.new_tokens and f"{name}.weight" not in whole}
    if rows and getattr(head, "bias", None) is not None:
        raise ModelError(
            f"peft trains rows of new tokens in heads without a bias, and that of {type(built.model).__name__} has one",
            "set train.method=full, or name embedding and head in train.lora.modules_to_save",
        )
    return rows


def _inject(lora: LoraConfig, built: Built, whole: Collection[str]) -> None:
    """whole: parameters that are trained themselves."""
    import peft
    from transformers.pytorch_utils import Conv1D

    model, name = built.model, type(built.model).__name__
    blank = next(model.parameters()).is_meta
    layers = {layer: module for layer, module in body_layers(model).items() if f"{layer}.weight" not in whole}
    wanted = matching_layers(_targets(lora, model, layers), list(layers), name)
    wanted = in_layers(lora.layers_to_transform, wanted, name)
    conv = any(isinstance(layers[layer], Conv1D) for layer in wanted)
    if conv and lora.init_lora_weights == "olora":
        raise ModelError(f"peft has no OLoRA for Conv1D, which {name} has", "set train.lora.init_lora_weights=pissa")
    ranks = values_by_layer(lora.rank_pattern, wanted, name, "train.lora.rank_pattern")
    alphas = values_by_layer(lora.alpha_pattern, wanted, name, "train.lora.alpha_pattern")
    check_rank(dict.fromkeys(wanted, lora.rank) | ranks, {layer: _size(layers[layer]) for layer in wanted})
    rows = _new_rows(built, whole)
    if both := sorted(rows.keys() & {*wanted}):
        raise ModelError(
            f"train.lora.targets names {both[0]}, of which the rows of tokenize.new_tokens are trained",
            "leave it out of the targets, or name it in train.lora.modules_to_save",
        )
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        use_rslora=lora.use_rslora,
        rank_pattern={re.escape(layer): rank for layer, rank in ranks.items()},
        alpha_pattern={re.escape(layer): alpha for layer, alpha in alphas.items()},
        lora_dropout=lora.dropout,
        target_modules=target_modules(wanted, [module for module, _ in model.named_modules()]),
        fan_in_fan_out=conv,
        use_dora=lora.use_dora,
        # without values there is nothing to decompose
        init_lora_weights=True if blank or lora.init_lora_weights is None else lora.init_lora_weights,
        trainable_token_indices=rows or None,
    )
    peft.inject_adapter_in_model(settings, model, low_cpu_mem_usage=blank)
    for layer, ids in rows.items():
        if built.stored is None:
            continue  # the values are there
        delta = model.get_submodule(layer).token_adapter.trainable_tokens_delta["default"]
        delta.data = built.stored.part(f"{layer}.weight", (slice(ids[0], ids[-1] + 1),))


def _targets(lora: LoraConfig, model: Any, layers: dict[str, Module]) -> list[str]:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    if lora.targets == ALL_LINEAR:
        return [name for name, module in layers.items() if module is not model.get_output_embeddings()]
    if lora.targets is not None:
        return list(lora.targets)
    known = KNOWN.get(model.config.model_type)
    if known is None:
        leaves = sorted({name.rpartition(".")[2] for name in layers})
        raise ModelError(
            f"peft knows no targets for a model of type {model.config.model_type}",
            f"set train.lora.targets to {ALL_LINEAR}, or to some of {', '.join(leaves)}",
        )
    return [name for name in layers if re.fullmatch(known, name)] if isinstance(known, str) else list(known)


def _size(layer: Any) -> tuple[int, int]:
    """Return (outputs, inputs)."""
    first, second = layer.weight.shape
    return (first, second) if hasattr(layer, "out_features") else (second, first)
