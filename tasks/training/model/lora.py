"""Which layers LoRA adapts, how they are named and how they are split. Uses names alone, without torch.

W x + alpha / rank * B A dropout(x): W [out, in] is frozen, A [rank, in] starts at random, B [out, rank] at zero.
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
    """Return the adapted layer of peft's three modules; any other name itself."""
    for part in (BASE, A, B):
        module = module.removesuffix(part)
    return module


def adapted_rules(rules: Mapping[str, str]) -> dict[str, str]:
    """Return the tensor parallel plan with entries for LoRA's modules."""
    adapted = dict(rules)
    for pattern, style in rules.items():
        below = zip((BASE, A, B), (style, *STYLES_BELOW.get(style, (None, None))), strict=True)
        # a matrix without an entry is whole on every device
        adapted |= {pattern + part: of_part for part, of_part in below if of_part is not None}
    return adapted


def matching_layers(targets: Iterable[str], layers: Sequence[str], model: str) -> list[str]:
    """Return the layers that a target matches: last parts of names, "*" for any part. Raises ModelError."""
    matches = {target: [layer for layer in layers if _matches(target, layer)] for target in targets}
    for target, named in matches.items():
        if not named:
            raise ModelError(
                f"train.lora.targets: {target} names no linear layer of {model} that LoRA can adapt",
                _suggestion(target, layers),
            )
    wanted = {layer for named in matches.values() for layer in named}
    return [layer for layer in layers if layer in wanted]


def target_modules(wanted: Collection[str], modules: Iterable[str]) -> list[str]:
    """Return peft's `target_modules`: last parts of names if no other module has one, else full names."""
    leaves = {name.rpartition(".")[2] for name in wanted}
    named = {name for name in modules if name.rpartition(".")[2] in leaves}
    return sorted(leaves if named == set(wanted) else wanted)


def check_rank(rank: int, sizes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ModelError for a rank above a weight's smaller side: it saves nothing. sizes: (outputs, inputs)."""
    for layer, size in sizes.items():
        if rank > min(size):
            raise ModelError(
                f"train.lora.rank is {rank}, and {layer} has {size[1]} inputs and {size[0]} outputs",
                f"choose a rank of at most {min(size)}, or other train.lora.targets",
            )


def adapter_name(name: str) -> str:
    """Return the name under which peft saves a trained parameter."""
    module, _, leaf = name.rpartition(".")
    return f"base_model.model.{module.removesuffix('.default')}.{leaf}"


def _matches(target: str, layer: str) -> bool:
    parts = layer.split(".")[-len(target.split(".")) :]
    return covers(target, ".".join(parts))


def _suggestion(target: str, layers: Sequence[str]) -> str:
    leaves = sorted({layer.rpartition(".")[2] for layer in layers})
    near = difflib.get_close_matches(target.rpartition(".")[2], leaves, n=3)
    return f"use {' or '.join(near)}" if near else f"name some of {', '.join(leaves)}, or set it to {ALL_LINEAR}"
