"""Which layers LoRA adapts, how they are named and how they are split. Uses names alone, without torch.

W x + scaling * B A dropout(x): W [out, in] is frozen, A [rank, in] starts at random, B [out, rank] at zero.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.partition_specs import STYLES, covers
from trnflow.tasks.training.settings.lora import ALL_LINEAR

BASE, A, B = ".base_layer", ".lora_A.default", ".lora_B.default"
MAGNITUDE = ".lora_magnitude_vector.default"
"""Of DoRA: the length of each row of W + scaling * B A."""

TOKENS = ".token_adapter.trainable_tokens_delta"
"""The rows of new tokens, in place of the embedding's or head's own: peft's `trainable_token_indices`."""

PARTS = (A, B, MAGNITUDE, TOKENS)
"""The modules that LoRA trains."""

CONFIG = "adapter_config.json"

# {style of a layer: (style of A, style of B)}; None: replicated. A takes the layer's input, B gives its output
STYLES_BELOW: dict[str, tuple[str | None, str | None]] = {
    **dict.fromkeys(STYLES, (None, None)),
    "colwise": ("shared", "colwise"),
    "colwise_rep": (None, "colwise_rep"),
    "colwise_gather_output": (None, "colwise_gather_output"),
    "rowwise": ("rowwise", None),
    "rowwise_rep": ("rowwise_rep", None),
}


def base_layer(module: str) -> str:
    """Return the adapted layer of peft's modules; any other name itself."""
    for part in (BASE, A, B, TOKENS, ".token_adapter"):
        module = module.removesuffix(part)
    return module


def unwrapped(layer: Any) -> Any:
    """Return the layer below peft's wrapper of new tokens, whose `weight` is computed; any other itself."""
    return getattr(layer, "original_module", layer)


def adapted_rules(rules: Mapping[str, str]) -> dict[str, str]:
    """Return the tensor parallel plan with entries for LoRA's modules."""
    adapted = dict(rules)
    for pattern, style in rules.items():
        below = zip((BASE, A, B), (style, *STYLES_BELOW.get(style, (None, None))), strict=True)
        # a matrix without an entry is whole on every device
        adapted |= {pattern + part: of_part for part, of_part in below if of_part is not None}
    return adapted


def matching_layers(
    targets: Iterable[str], layers: Sequence[str], model: str, setting: str = "train.lora.targets"
) -> list[str]:
    """Return the layers that a target matches: last parts of names, "*" for any part. Raises ModelError."""
    matches = {target: [layer for layer in layers if _matches(target, layer)] for target in targets}
    for target, named in matches.items():
        if not named:
            raise ModelError(
                f"{setting}: {target} names no linear layer of {model} that LoRA can adapt",
                _suggestion(target, layers, setting),
            )
    wanted = {layer for named in matches.values() for layer in named}
    return [layer for layer in layers if layer in wanted]


def target_modules(wanted: Collection[str], modules: Iterable[str]) -> list[str]:
    """Return peft's `target_modules`: last parts of names if no other module has one, else full names."""
    leaves = {name.rpartition(".")[2] for name in wanted}
    named = {name for name in modules if name.rpartition(".")[2] in leaves}
    return sorted(leaves if named == set(wanted) else wanted)


def in_layers(numbers: Collection[int], layers: Sequence[str], model: str) -> list[str]:
    """Return those of `layers` that lie in the model's layers `numbers`; all without numbers. Raises ModelError."""
    found = {name: next((int(part) for part in name.split(".") if part.isdecimal()), None) for name in layers}
    if unknown := sorted(set(numbers) - set(found.values())):
        most = max((number for number in found.values() if number is not None), default=None)
        raise ModelError(
            f"train.lora.layers_to_transform: no layer {unknown[0]} of {model} has a target",
            f"name layers from 0 to {most}" if most is not None else "leave it out",
        )
    return [name for name in layers if not numbers or found[name] in numbers]


def values_by_layer(patterns: Mapping[str, int], layers: Sequence[str], model: str, setting: str) -> dict[str, int]:
    """Return {layer: value of the first pattern that fits it}. Raises ModelError for a pattern that decides none and
    would change some."""
    matching_layers(patterns, layers, model, setting)
    first = {layer: next((pattern for pattern in patterns if _matches(pattern, layer)), None) for layer in layers}
    for pattern, value in patterns.items():
        got = {patterns[str(first[layer])] for layer in layers if _matches(pattern, layer)}
        if pattern not in first.values() and got != {value}:
            raise ModelError(
                f"{setting}: all that {pattern} names has another value by a pattern before it",
                f"write {pattern} first",
            )
    return {layer: patterns[pattern] for layer, pattern in first.items() if pattern is not None}


def scaling(adapter: Meta, layer: str, rank: int) -> float:
    """Return how many times a layer's update counts, as peft does. adapter: peft's adapter_config.json."""
    patterns = adapter["alpha_pattern"].items()
    alpha: float = next((a for key, a in patterns if re.match(rf"(.*\.)?({key})$", layer)), adapter["lora_alpha"])
    return alpha / (math.sqrt(rank) if adapter["use_rslora"] else rank)


def check_rank(ranks: Mapping[str, int], sizes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ModelError for a rank above a weight's smaller side: it saves nothing. sizes: (outputs, inputs)."""
    for layer, size in sizes.items():
        if ranks[layer] > min(size):
            raise ModelError(
                f"train.lora.rank is {ranks[layer]}, and {layer} has {size[1]} inputs and {size[0]} outputs",
                f"choose a rank of at most {min(size)}, or other train.lora.targets",
            )


def adapter_name(name: str) -> str:
    """Return the name under which peft saves a trained parameter."""
    module, _, leaf = name.rpartition(".")
    published = f"base_model.model.{module.removesuffix('.default')}"
    return published if module.endswith((MAGNITUDE, TOKENS)) else f"{published}.{leaf}"


def original_base(adapter: Meta) -> Meta:
    """Return the adapter_config.json of PiSSA or OLoRA as peft's `path_initial_model_for_weight_conversion` writes it: with
    twice the rank, for the base as it was."""
    grown = math.sqrt(2) if adapter["use_rslora"] else 2
    ranks = {layer: 2 * rank for layer, rank in adapter["rank_pattern"].items()}
    alphas = {layer: grown * alpha for layer, alpha in adapter["alpha_pattern"].items()}
    both = {"r": 2 * adapter["r"], "lora_alpha": grown * adapter["lora_alpha"], "init_lora_weights": True}
    return {**adapter, **both, "rank_pattern": ranks, "alpha_pattern": alphas}


def _matches(target: str, layer: str) -> bool:
    parts = layer.split(".")[-len(target.split(".")) :]
    return covers(target, ".".join(parts))


def _suggestion(target: str, layers: Sequence[str], setting: str) -> str:
    leaves = sorted({layer.rpartition(".")[2] for layer in layers})
    near = difflib.get_close_matches(target.rpartition(".")[2], leaves, n=3)
    if near:
        return f"use {' or '.join(near)}"
    return f"name some of {', '.join(leaves)}{f', or set it to {ALL_LINEAR}' if setting.endswith('targets') else ''}"
