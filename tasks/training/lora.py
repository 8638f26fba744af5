"""LoRA's settings, and which layers they choose: names alone, no torch.

A chosen layer computes W x + alpha / rank * B A dropout(x). W [out, in] is frozen; A [rank, in] starts at random, B [out, rank]
at zero, so that training starts from the very model. peft makes the layers (`adapters`) and its names are kept: `BASE` is
the frozen layer, `A` and `B` stand beside it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator

from tasks.config import StageConfig
from tasks.errors import ModelError
from tasks.training.plan import STYLES, covers

BASE, A, B = ".base_layer", ".lora_A.default", ".lora_B.default"
ALL_LINEAR = "all-linear"
CONFIG = "adapter_config.json"

# style of a layer -> of its A and its B; None: whole on every device. B makes what the layer makes, and A reads what it reads
STYLES_BELOW: dict[str, tuple[str | None, str | None]] = {
    **dict.fromkeys(STYLES, (None, None)),
    "colwise": ("shared", "colwise"),
    "colwise_rep": (None, "colwise_rep"),
    "colwise_gather_output": (None, "colwise_gather_output"),
    "rowwise": ("rowwise", None),
    "rowwise_rep": ("rowwise_rep", None),
}


class LoraConfig(StageConfig):
    """rank: of the update, whose weight is alpha / rank; dropout: of what A reads; targets: the layers that are adapted, by the
    last parts of their names ("*" for any one part), such as q_proj or layers.*.mlp.up_proj; or "all-linear": all but the
    head; None: those that peft knows for the model's type."""

    rank: PositiveInt = 8
    alpha: PositiveInt = 8
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    @field_validator("targets", mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str) and value != ALL_LINEAR:
            raise ValueError(f"write a list, such as [{value}], or {ALL_LINEAR}")
        return value


def layer_of(module: str) -> str:
    """The name that a module's layer has without LoRA."""
    for part in (BASE, A, B):
        module = module.removesuffix(part)
    return module


def adapted_rules(rules: Mapping[str, str]) -> dict[str, str]:
    """A plan, and what it means for a layer that has become `BASE` with an A and a B beside it."""
    found = dict(rules)
    for pattern, style in rules.items():
        below = zip((BASE, A, B), (style, *STYLES_BELOW.get(style, (None, None))), strict=True)
        found |= {pattern + part: of_part for part, of_part in below if of_part is not None}
    return found


def chosen(targets: Iterable[str], layers: Sequence[str], model: str) -> list[str]:
    """Those of `layers` that a target names, in order. model: its class, for messages. ModelError where a target names none."""
    found = {target: [layer for layer in layers if _names(target, layer)] for target in targets}
    for target, named in found.items():
        if not named:
            raise ModelError(
                f"train.lora.targets: {target} names no linear layer of {model} that LoRA can adapt",
                _nearest(target, layers),
            )
    wanted = {layer for named in found.values() for layer in named}
    return [layer for layer in layers if layer in wanted]


def briefly(wanted: Collection[str], modules: Iterable[str]) -> list[str]:
    """`wanted` as peft's `target_modules`: by last parts alone where these name nothing else in the model, else in full."""
    leaves = {name.rpartition(".")[2] for name in wanted}
    named = {name for name in modules if name.rpartition(".")[2] in leaves}
    return sorted(leaves if named == set(wanted) else wanted)


def check_rank(rank: int, sizes: Mapping[str, tuple[int, ...]]) -> None:
    """ModelError when an update of `rank` would be no smaller than the layer's own. sizes: [out, in] of each adapted layer."""
    for layer, size in sizes.items():
        if rank > min(size):
            raise ModelError(
                f"train.lora.rank is {rank}, and {layer} has {size[1]} inputs and {size[0]} outputs",
                f"choose a rank of at most {min(size)}, or other train.lora.targets",
            )


def published(name: str) -> str:
    """A trained parameter's name in `adapter_model.safetensors`, as peft saves it."""
    module, _, leaf = name.rpartition(".")
    return f"base_model.model.{module.removesuffix('.default')}.{leaf}"


def _names(target: str, layer: str) -> bool:
    parts = layer.split(".")[-len(target.split(".")) :]
    return covers(target, ".".join(parts))


def _nearest(target: str, layers: Sequence[str]) -> str:
    leaves = sorted({layer.rpartition(".")[2] for layer in layers})
    near = difflib.get_close_matches(target.rpartition(".")[2], leaves, n=3)
    return f"use {' or '.join(near)}" if near else f"name some of {', '.join(leaves)}, or set it to {ALL_LINEAR}"
