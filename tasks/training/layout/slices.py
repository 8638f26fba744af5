"""Which part of each tensor a rank holds, from specs and mesh. Creates and copies no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.layout.rules import tp_rules
from trnflow.tasks.training.optim.rate_factors import rate_factors
from trnflow.tasks.training.partition_specs import Mesh, Shape, Spec, covers, parameter_specs, state_spec
from trnflow.tasks.training.shared_types import Built
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ShardLayout:
    """How a model's parameters are split over the mesh.

    Attributes:
        shapes: Of whole parameters.
        tp: Specs in the passes, over "model" only.
        specs: Between steps; with FSDP, and of engine native's ZeRO-1 the trained ones, also over "data".
        states: Of the optimizer's state; with ZeRO-1 or FSDP also over "data".
        plan: {module pattern: style}, of `tp_rules`.
        styles: {module: its style in the plan}.
        packed: Bytes of quantised layers, which every rank holds.
        rates: {trained parameter: factor of its learning rate, if not 1}.
    """

    model: str
    mesh: Mesh
    shapes: dict[str, Shape]
    tp: dict[str, Spec]
    specs: dict[str, Spec]
    states: dict[str, Spec]
    plan: dict[str, str]
    styles: dict[str, str]
    packed: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)


def layout_of(config: TrainConfig, built: Built) -> ShardLayout:
    """Return a model's layout; it may be on "meta". Raises ModelError when it can't be split so."""
    shapes: dict[str, Shape] = {name: tuple(parameter.shape) for name, parameter in built.parameters().items()}
    mesh, model = config.mesh, type(built.model).__name__
    plan = tp_rules(built.model, shapes, config.tensor_parallel_rules) if mesh.model > 1 else {}
    tp = parameter_specs(shapes, plan, mesh, model)
    states = {name: state_spec(shapes[name], tp[name], mesh, config.zero1 or config.fsdp) for name in shapes}
    modules = {name.rpartition(".")[0] for name in shapes}
    styles = {name: style for name in sorted(modules) for pattern, style in plan.items() if covers(pattern, name)}
    kept = {name: states[name] for name in built.trained()}
    packed = sum(getattr(module, "packed_bytes", 0) for module in built.model.modules())
    specs = states if config.fsdp else {**tp, **kept} if config.engine == "native" else tp
    return ShardLayout(model, mesh, shapes, tp, specs, kept, plan, styles, packed, rate_factors(config, built))


def fp32_shards(config: TrainConfig, layout: ShardLayout) -> frozenset[str]:
    """Return the parameters that FSDP keeps in fp32, as masters, and gathers in the dtype that computes."""
    return frozenset(name for name in layout.states if config.keeps_masters and "data" in layout.specs[name])


def piece(tensor: Tensor, spec: Spec, world: World) -> Tensor:
    """Return this rank's part of a whole tensor, as a view."""
    for dimension, axis in enumerate(spec):
        if axis is not None:
            size = tensor.shape[dimension] // world.mesh.parts(axis)
            tensor = tensor.narrow(dimension, size * world.part(axis), size)
    return tensor


def piece_shape(shape: Shape, spec: Spec, mesh: Mesh) -> Shape:
    """Return the shape of a rank's part, the same on all."""
    return tuple(size if axis is None else size // mesh.parts(axis) for size, axis in zip(shape, spec, strict=True))


def piece_start(shape: Shape, spec: Spec, world: World) -> tuple[int, ...]:
    """Return the index in each dimension where this rank's part begins."""
    part = piece_shape(shape, spec, world.mesh)
    return tuple(0 if axis is None else size * world.part(axis) for size, axis in zip(part, spec, strict=True))


def piece_slices(shape: Shape, spec: Spec, world: World) -> tuple[slice, ...]:
    """Return the indices of this rank's part in each dimension."""
    sizes = piece_shape(shape, spec, world.mesh)
    return tuple(slice(at, at + size) for at, size in zip(piece_start(shape, spec, world), sizes, strict=True))


def writes_piece(spec: Spec, world: World) -> bool:
    """Return whether this rank writes its part to a checkpoint: the first of those that hold it."""
    first = world.data < (world.mesh.parts("data") if "data" in spec else 1)
    return first and ("model" in spec or world.model == 0)


def piece_copies(spec: Spec, mesh: Mesh) -> int:
    """Return how many ranks hold the same part."""
    return (mesh.copies if "data" in spec else mesh.data) * (1 if "model" in spec else mesh.model)


def check_length(config: TrainConfig, length: int) -> None:
    """Raise ModelError when sequence parallelism can't split `length` positions evenly."""
    if config.sequence_parallel and length % config.tensor_parallel_size:
        raise ModelError(
            f"sequence_parallel splits {length} positions over {config.tensor_parallel_size} devices",
            "choose lengths that tensor_parallel_size divides, or set train.sequence_parallel=false",
        )


def check_kinds(built: Built, tp: dict[str, Spec]) -> None:
    """Raise ModelError when engine native can't split a parameter's module."""
    import torch

    for name, spec in tp.items():
        module = built.model.get_submodule(name.rpartition(".")[0])
        if "model" in spec and not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            raise ModelError(
                f"{name} of {type(built.model).__name__} belongs to a {type(module).__name__}; engine native splits linear "
                "layers and embeddings alone",
                "set train.tensor_parallel_size=1, or other train.tensor_parallel_rules",
            )
