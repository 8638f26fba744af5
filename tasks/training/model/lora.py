"""Decide which layers LoRA adapts, how they are named and how they are split over devices. Uses only names, without
torch.

An adapted layer computes W x + alpha / rank * B A dropout(x). W [out, in] is frozen. A [rank, in] starts at random and B
[out, rank] at zero, so that training starts from the original model. peft makes the layers and chooses the names: the
constant `BASE` is the suffix of the frozen layer's name, `A` and `B` are those of the two matrices.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.partition_specs import STYLES, covers
from trnflow.tasks.training.settings.lora import ALL_LINEAR

BASE, A, B = ".base_layer", ".lora_A.default", ".lora_B.default"
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
    """Return the name of the layer that LoRA adapts, if `module` names one of the three modules that peft puts in the
    layer's place: the frozen layer, and LoRA's matrices A and B. Return any other name as it is."""
    for part in (BASE, A, B):
        module = module.removesuffix(part)
    return module


def adapted_rules(rules: Mapping[str, str]) -> dict[str, str]:
    """Return the tensor parallel plan `rules` ({pattern of layer names: style}) with entries for LoRA's modules added.

    For each layer that the plan names there is an entry for the frozen layer, with the same style. LoRA's matrices A
    and B get an entry if they need a style; without an entry a matrix is whole on every device."""
    found = dict(rules)
    for pattern, style in rules.items():
        below = zip((BASE, A, B), (style, *STYLES_BELOW.get(style, (None, None))), strict=True)
        found |= {pattern + part: of_part for part, of_part in below if of_part is not None}
    return found


def matching_layers(targets: Iterable[str], layers: Sequence[str], model: str) -> list[str]:
    """Return the names in `layers` that one of the `targets` matches, in the order of `layers`.

    targets: last parts of layer names, such as "q_proj", with "*" for any one part; model: the name of the model's
    class, for error messages. Raise ModelError when a target matches no layer."""
    found = {target: [layer for layer in layers if _matches(target, layer)] for target in targets}
    for target, named in found.items():
        if not named:
            raise ModelError(
                f"train.lora.targets: {target} names no linear layer of {model} that LoRA can adapt",
                _suggestion(target, layers),
            )
    wanted = {layer for named in found.values() for layer in named}
    return [layer for layer in layers if layer in wanted]


def target_modules(wanted: Collection[str], modules: Iterable[str]) -> list[str]:
    """Return the layers `wanted` in the form of peft's `target_modules` setting, sorted: the last parts of their
    names, if no other module has such a last part; else the full names. modules: the names of all modules of the
    model."""
    leaves = {name.rpartition(".")[2] for name in wanted}
    named = {name for name in modules if name.rpartition(".")[2] in leaves}
    return sorted(leaves if named == set(wanted) else wanted)


def check_rank(rank: int, sizes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ModelError when LoRA's `rank` is larger than the smaller side of a layer's weight, because the matrices
    A and B would then save nothing. sizes: (outputs, inputs) by layer name."""
    for layer, size in sizes.items():
        if rank > min(size):
            raise ModelError(
                f"train.lora.rank is {rank}, and {layer} has {size[1]} inputs and {size[0]} outputs",
                f"choose a rank of at most {min(size)}, or other train.lora.targets",
            )


def adapter_name(name: str) -> str:
    """Return the name under which peft saves a trained parameter in `adapter_model.safetensors`. name: the parameter's
    name in the model."""
    module, _, leaf = name.rpartition(".")
    return f"base_model.model.{module.removesuffix('.default')}.{leaf}"


def _matches(target: str, layer: str) -> bool:
    parts = layer.split(".")[-len(target.split(".")) :]
    return covers(target, ".".join(parts))


def _suggestion(target: str, layers: Sequence[str]) -> str:
    leaves = sorted({layer.rpartition(".")[2] for layer in layers})
    near = difflib.get_close_matches(target.rpartition(".")[2], leaves, n=3)
    return f"use {' or '.join(near)}" if near else f"name some of {', '.join(leaves)}, or set it to {ALL_LINEAR}"
