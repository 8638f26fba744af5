"""Layout as data: which axis of the mesh shards which dimension of a tensor. Pure functions, no torch.

A *spec* names a mesh axis ("data", "model") or None for each dimension of a tensor. `parameter_specs` reads a plan (module
pattern -> style), the model's own or one of `tasks.training.rules`. A style it does not know is an error, never a guess; a
parameter the plan does not name is replicated; so is a vocabulary that the axis does not divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.errors import ModelError

Shape = tuple[int, ...]
Spec = tuple[str | None, ...]

SHARED = "shared"  # LoRA's A before a layer that is split by columns: whole, and read by all of its parts; no recipe's
# style -> (sharded dimension of a weight, of a bias); None: replicated
STYLES: dict[str, tuple[int | None, int | None]] = {
    "colwise": (0, 0),
    "colwise_rep": (0, 0),
    "colwise_gather_output": (0, 0),
    "rowwise": (1, None),
    "rowwise_rep": (1, None),
    "embedding_rowwise": (0, None),
    "replicated_with_grad_allreduce": (None, None),
    "sequence_parallel": (None, None),
    SHARED: (None, None),
}
HEADS = (("num_attention_heads", "n_heads", "n_head"), ("num_key_value_heads",))  # as models' configs call them
# a vocabulary may have any size, and replicating it is right, if larger
VOCABULARY = ("embedding_rowwise", "colwise_gather_output", "colwise_rep")


class Mesh(NamedTuple):
    """Devices along each axis; device `d * model + m` stands at (d, m)."""

    data: int
    model: int


def parameter_specs(shapes: Mapping[str, Shape], tp_plan: Mapping[str, str], mesh: Mesh, model: str) -> dict[str, Spec]:
    """Parameter name -> spec. shapes: of the model's parameters; model: its class, for messages. ModelError when there is
    no plan though the model axis has devices, for an unknown style, or a dimension that the axis does not divide."""
    if mesh.model == 1:
        return {name: (None,) * len(shape) for name, shape in shapes.items()}
    if not tp_plan:
        raise ModelError(
            f"{model} has no tp_plan, and no rules are known for it, so it cannot be split over {mesh.model} tensor parallel "
            "devices",
            "set train.tensor_parallel_size=1 (data parallel only), or give train.tensor_parallel_rules: layer -> style",
        )
    for pattern, style in sorted(tp_plan.items()):
        if style not in STYLES:
            raise ModelError(
                f"the tp_plan of {model} uses the style {style!r} for {pattern}, which is not known here",
                "set train.tensor_parallel_size=1",
            )
    return {name: _spec(name, shape, tp_plan, mesh, model) for name, shape in shapes.items()}


def check_heads(fields: Mapping[str, Any], size: int) -> None:
    """fields: of the model's config, as far as they are known. ModelError when `size` tensor parallel devices do not divide its
    attention heads, or those of keys and values: a head is computed on one device."""
    for names in HEADS:
        for name in names:
            heads = fields.get(name)
            if isinstance(heads, int) and heads % size:
                raise ModelError(
                    f"the model has {heads} heads ({name}), which {size} tensor parallel devices do not divide",
                    "choose a train.tensor_parallel_size that divides them",
                )


def covers(pattern: str, module: str) -> bool:
    """Whether a plan's pattern names the module; "*" stands for one part of its name."""
    wanted, parts = pattern.split("."), module.split(".")
    return len(wanted) == len(parts) and all(w in ("*", p) for w, p in zip(wanted, parts, strict=True))


def state_spec(shape: Shape, spec: Spec, mesh: Mesh, zero1: bool) -> Spec:
    """The spec of a parameter's optimizer state: with ZeRO-1 also sharded over data, on the first dimension that allows it."""
    if not zero1 or mesh.data == 1:
        return spec
    for dimension, size in enumerate(shape):
        if spec[dimension] is None and size % mesh.data == 0:
            return (*spec[:dimension], "data", *spec[dimension + 1 :])
    return spec


def _spec(name: str, shape: Shape, tp_plan: Mapping[str, str], mesh: Mesh, model: str) -> Spec:
    module, _, leaf = name.rpartition(".")
    style = next((style for pattern, style in tp_plan.items() if covers(pattern, module)), None)
    dimension = None if style is None else STYLES[style][0 if leaf == "weight" else 1]
    if dimension is None:
        return (None,) * len(shape)
    if shape[dimension] % mesh.model:
        if style in VOCABULARY:
            return (None,) * len(shape)
        raise ModelError(
            f"dimension {dimension} of {name} in {model} is {shape[dimension]}, which {mesh.model} tensor parallel "
            "devices do not divide",
            "choose another train.tensor_parallel_size",
        )
    return tuple("model" if index == dimension else None for index in range(len(shape)))
