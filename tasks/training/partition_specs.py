"""Compute partition specs. Pure functions without torch.

A tensor parallel plan maps module patterns to styles such as "colwise"; what it does not name is replicated. An unknown
style is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trnflow.tasks.errors import ModelError

Shape = tuple[int, ...]
Spec = tuple[str | None, ...]

SHARED = (
    "shared"  # the style of LoRA's A in a layer split by columns: replicated, used by all parts. Not allowed in recipes
)
# {style: (split dimension of a weight, of a bias)}; None: replicated
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
HEADS = (("num_attention_heads", "n_heads", "n_head"), ("num_key_value_heads",))  # names in models' configs
# styles of embeddings and heads: replicated if the axis does not divide the vocabulary size
VOCABULARY = ("embedding_rowwise", "colwise_gather_output", "colwise_rep")


class Mesh(NamedTuple):
    """The devices along each axis; device `d * model + m` is at (d, m). data: replicas; model: devices that share one.

    copies: Groups of replicas that each hold all that is split over "data" (HSDP); those of a group are neighbours.
    """

    data: int
    model: int
    copies: int = 1

    def parts(self, axis: str) -> int:
        """Return into how many parts an axis splits a tensor."""
        return self.data // self.copies if axis == "data" else self.model


def parameter_specs(shapes: Mapping[str, Shape], tp_plan: Mapping[str, str], mesh: Mesh, model: str) -> dict[str, Spec]:
    """Return each parameter's partition spec. With one device along "model" nothing is split.

    tp_plan: {module pattern: style}. Raises ModelError when the plan is empty, a style unknown, or a dimension is not
    divided.
    """
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
    """Raise ModelError unless `size` devices divide the numbers of heads in a config: each computes whole heads."""
    for names in HEADS:
        for name in names:
            heads = fields.get(name)
            if isinstance(heads, int) and heads % size:
                raise ModelError(
                    f"the model has {heads} heads ({name}), which {size} tensor parallel devices do not divide",
                    "choose a train.tensor_parallel_size that divides them",
                )


def covers(pattern: str, module: str) -> bool:
    """Return whether a plan's pattern matches a module name; "*" is one part between dots."""
    wanted, parts = pattern.split("."), module.split(".")
    return len(wanted) == len(parts) and all(w in ("*", p) for w, p in zip(wanted, parts, strict=True))


def state_spec(shape: Shape, spec: Spec, mesh: Mesh, zero1: bool) -> Spec:
    """Return the partition spec of a parameter's optimizer state. With `zero1` the first dimension that is not split,
    and that the replicas of a copy divide, is also split over "data"."""
    if not zero1 or mesh.parts("data") == 1:
        return spec
    for dimension, size in enumerate(shape):
        if spec[dimension] is None and size % mesh.parts("data") == 0:
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
