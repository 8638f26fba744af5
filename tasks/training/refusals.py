"""Refuse a model that training can't take, by its config.json and the code of transformers' classes alone."""

from __future__ import annotations

import ast
import difflib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Known
from trnflow.tasks.training.config import TrainConfig, check_positions, positions_needed
from trnflow.tasks.training.layout.rules import RULES
from trnflow.tasks.training.model.transformers_classes import ClassCode
from trnflow.tasks.training.model.transformers_tables import (
    CLASSIFIER,
    CONFIG,
    LANGUAGE,
    MASKED,
    TAGGER,
    code_file,
    config_code,
    model_code,
    tables,
    words_of_all_configs,
)
from trnflow.tasks.training.partition_specs import check_heads
from trnflow.tasks.training.preference_losses import task_of
from trnflow.tasks.training.settings.lora import ALL_LINEAR

KNOWN_TYPE = "set model.source to a model whose model_type transformers knows"
CHUNKED = "chunked_attention"
MASKED_KINDS = ("full_attention", "attention", "sliding_attention", CHUNKED)
"""Kinds of layers for which there is a mask, by transformers' names."""
LORA_TARGETS = "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"
"""peft's table."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""transformers' names for the number of experts, whose weights are not those of linear layers."""
PACKING = ("bfd", "concat")
"""Values of pack.strategy with which a row may have several documents."""


def refuse_unfit_model(config: TrainConfig, known: Known) -> None:
    """Raise ModelError if the model's config.json alone shows that transformers, or training here, can't take it."""
    source = known.sources["model"].identity["config"]
    fields = {**(source["pretrained"] or {}), **source["overrides"]}
    if not tables():
        return
    model_type, task = str(fields.get("model_type")), known.of("chunks").get("task")
    task = task and task_of(config.objective, task)
    if model_type not in tables()[CONFIG]:
        raise _unknown(model_type, fields)
    _refuse_unknown_fields(model_type, source["overrides"])
    per_row = task is not None and kind_of(task).per_row
    table = LANGUAGE if not per_row else TAGGER if kind_of(str(task)).per_position else CLASSIFIER
    if per_row and model_type not in tables()[table]:
        what = kind_of(str(task)).auto_class.removeprefix("AutoModelFor")
        raise ModelError(
            f"transformers has no {'classifier' if table == CLASSIFIER else what} of model_type {model_type}",
            "choose another model, such as BERT",
        )
    if task is not None and not per_row:
        _refuse_no_language_model(model_type, fields)
    if task is not None:
        _refuse_settings(config, model_type, fields, table)
        _refuse_rows(fields, known.of("chunks"), scratch=source["pretrained"] is None)


def _unknown(model_type: str, fields: Meta) -> ModelError:
    if "auto_map" in fields:
        return ModelError(
            f"the model needs its own code for model_type {model_type!r}, which trnflow does not run because no key "
            "would contain it",
            KNOWN_TYPE,
        )
    near = difflib.get_close_matches(model_type, tables()[CONFIG], n=1)
    return ModelError(f"transformers knows no model_type {model_type!r}", f"use {near[0]}" if near else KNOWN_TYPE)


def _refuse_unknown_fields(model_type: str, overrides: Meta) -> None:
    settings = config_code(model_type)
    others = overrides.keys() - settings.words if settings.derives_from("PreTrainedConfig") else set[str]()
    for name in overrides if others else ():
        if name in others - words_of_all_configs():
            near = difflib.get_close_matches(name, settings.fields, n=1)
            raise ModelError(f"model.config.{name}: {model_type} has no such field", f"use {near[0]}" if near else "")


def _refuse_no_language_model(model_type: str, fields: Meta) -> None:
    text = fields.get("text_config") if isinstance(fields.get("text_config"), dict) else fields
    assert isinstance(text, dict)
    encodes = model_type in tables()[MASKED] and model_type != "xlm" and not fields.get("is_decoder")
    if model_type not in tables()[LANGUAGE] or encodes or text.get("use_bidirectional_attention"):
        raise ModelError(
            f"a {model_type} attends in both directions, or generates no text", "use a causal model, such as Llama"
        )


def _refuse_settings(config: TrainConfig, model_type: str, fields: Meta, table: str) -> None:
    """Raise ModelError for settings of training that no model of this type can follow."""
    model, settings, name = model_code(model_type, table), config_code(model_type), tables()[table][model_type]
    if not (model.derives_from("PreTrainedModel") and settings.derives_from("PreTrainedConfig")):
        return
    if not model.value("_supports_sdpa"):
        raise ModelError(
            f"{name} has no sdpa attention in transformers, which training here needs",
            "choose a model with sdpa attention, such as Llama, Mistral, Qwen or Gemma 3",
        )
    causal = fields.get("is_decoder") or (model_type in tables()[LANGUAGE] and model_type not in tables()[MASKED])
    if config.attention in ("documents", "varlen") and not causal:
        raise ModelError(
            f"train.attention={config.attention} is causal, and {name} attends in both directions",
            "set train.attention=sdpa",
        )
    if "text_config" in settings.fields:
        return  # the text model has a class and settings of its own
    tied = settings.of(fields, "tie_word_embeddings") is True and model.value("_tied_weights_keys")
    if config.method == "head" and table == LANGUAGE and tied:
        raise ModelError(
            f"{name} has no head of its own to train: its output layer shares the weights of the input embedding",
            "set train.method=lora or full, or model.overrides.tie_word_embeddings=false",
        )
    if config.remat and "GradientCheckpointingLayer" not in _text(code_file(model_type, "modeling")):
        raise ModelError(f"{name} marks no layers to recompute", "set train.remat=false")
    if config.lora is not None and config.lora.base_dtype is not None:
        _refuse_quantised(config.lora.base_dtype, model_type, fields, name)
    if config.lora is not None and config.lora.init_lora_weights == "olora" and _has_conv1d(model_type):
        raise ModelError(f"peft has no OLoRA for Conv1D, which {name} has", "set train.lora.init_lora_weights=pissa")
    if config.lora is not None and config.lora.targets is None and model_type not in _lora_targets():
        raise ModelError(
            f"peft knows no targets for a model of type {model_type}", f"set train.lora.targets to {ALL_LINEAR}"
        )
    if config.tensor_parallel_size > 1:
        _refuse_split(config, model_type, fields, model, settings)


def _refuse_quantised(kind: str, model_type: str, fields: Meta, name: str) -> None:
    """Raise ModelError for `lora.base_dtype` with a family whose weights are not those of linear layers."""
    settings, code = config_code(model_type), _text(code_file(model_type, "modeling"))
    experts = any(settings.of(fields, count) for count in EXPERTS) and re.search(r"class \w+Experts\(", code)
    if experts or _has_conv1d(model_type):
        raise ModelError(
            f"train.lora.base_dtype={kind} quantises linear layers, and {name} keeps its weights in "
            f"{'experts' if experts else 'Conv1D'}",
            "leave train.lora.base_dtype out, or choose a model of linear layers, such as Llama, Mistral or Qwen",
        )


def _has_conv1d(model_type: str) -> bool:
    return re.search(r"\bConv1D\(", _text(code_file(model_type, "modeling"))) is not None


def _refuse_split(config: TrainConfig, model_type: str, fields: Meta, model: ClassCode, settings: ClassCode) -> None:
    heads = {name: settings.of(fields, name) for name in ("num_attention_heads", "num_key_value_heads")}
    check_heads(heads, config.tensor_parallel_size)
    plans = (settings.value("base_model_tp_plan"), model.value("_tp_plan"), config.tensor_parallel_rules)
    if model_type not in RULES and not any(plans):
        raise ModelError(
            f"{model.nodes[0].name} has no tp_plan, and no rules are known for it, so it cannot be split over "
            f"{config.tensor_parallel_size} tensor parallel devices",
            "set train.tensor_parallel_size=1 (data parallel only), or give train.tensor_parallel_rules: layer -> style",
        )


def refuse_long_export(length: int | None, known: Known) -> None:
    """Raise ModelError for an export of more tokens than the model has positions for."""
    positions = positions_of(known.sources["model"].identity["config"])
    if length is not None and positions is not None and length > positions:
        raise ModelError(
            f"the model has positions for {positions} tokens, and the export is for {length}",
            f"set export.length to {positions} or less",
        )


def positions_of(config: Meta) -> int | None:
    """Return the most tokens of a text; None if the config does not say. config: `identity["config"]` of a model's source."""
    text_type, text = _text_model({**(config["pretrained"] or {}), **config["overrides"]})
    return _positions(text_type, text, scratch=config["pretrained"] is None) if tables() else None


def _text_model(fields: Meta) -> tuple[str, Meta]:
    """Return (model type, fields) of the language model in a model."""
    text = fields["text_config"] if isinstance(fields.get("text_config"), dict) else fields
    return str(text.get("model_type", fields.get("model_type"))), text


def _positions(model_type: str, fields: Meta, *, scratch: bool) -> int | None:
    """Return how many tokens the model has positions for, if its settings say so."""
    settings = config_code(model_type)
    positions = settings.of(fields, "max_position_embeddings")
    first = _first_position(model_type, fields, settings, scratch=scratch)
    return positions - first if isinstance(positions, int) else None


def _refuse_rows(fields: Meta, chunks: Meta, *, scratch: bool) -> None:
    """Raise ModelError for rows that the model's positions or layers can't take."""
    text_type, text = _text_model(fields)
    settings, longest = config_code(text_type), max(chunks.get("lengths", (0,)))
    positions = _positions(text_type, text, scratch=scratch)
    if positions is not None and (needed := positions_needed(chunks)):
        check_positions(needed, positions, "the model")
    kinds, chunk = _layer_kinds(text, settings), settings.of(text, "attention_chunk_size")
    if CHUNKED in kinds and isinstance(chunk, int) and longest > chunk > 0:
        raise ModelError(
            f"rows of {longest} tokens, and a {text_type} attends in chunks of {chunk} (attention_chunk_size), for which "
            "there is no mask here",
            "lower pack.chunk_length to that size",
        )
    others = sorted(kinds - {*MASKED_KINDS})
    if others and chunks.get("strategy") in PACKING:
        raise ModelError(
            f"a {text_type} has layers of {', '.join(others)}, in which no mask keeps packed documents apart",
            "set pack.strategy=pad or bucket",
        )


def _layer_kinds(fields: Meta, settings: ClassCode) -> set[str]:
    """Return the kinds of layers that config.json lists, else "chunked_attention" if the class's own list has that."""
    if "layer_types" not in settings.fields:
        return set()
    listed = fields.get("layer_types")
    return set(listed) if isinstance(listed, list) else settings.words_of("__post_init__") & {CHUNKED}


def _first_position(model_type: str, fields: Meta, settings: ClassCode, *, scratch: bool) -> int:
    """Return the position of a row's first token: the pad id + 1 for RoBERTa and those like it, else 0."""
    own_positions = "    def create_position_ids_from_input_ids(" in _text(code_file(model_type, "modeling"))
    # from scratch the pad id is the tokenizer's
    pad: Any = None if scratch else settings.of(fields, "pad_token_id")
    return pad + 1 if own_positions and isinstance(pad, int) else 0


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _lora_targets() -> frozenset[str]:
    """Return the model types for which peft knows LoRA's targets, read without importing peft."""
    package = find_spec("peft")
    file = Path(package.origin).parent / "utils/constants.py" if package and package.origin else Path("none")
    for node in ast.parse(_text(file)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == LORA_TARGETS:
            return frozenset(ast.literal_eval(node.value))
    return frozenset()
