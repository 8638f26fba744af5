"""Compute from partition specs and the mesh which part of each tensor a rank holds. No tensor is created or copied.

A rank is one of the processes that train together. The mesh has two axes: "data" (replicas of the model) and "model"
(devices that share one replica). A partition spec has one entry for each dimension of a tensor: the axis that splits
the dimension, or None. A layout has the specs of all parameters of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.layout.rules import tp_rules
from trnflow.tasks.training.partition_specs import Mesh, Shape, Spec, covers, parameter_specs, state_spec
from trnflow.tasks.training.ranks import World
from trnflow.tasks.training.shared_types import Built

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How each parameter of a model is split over the mesh of devices, with the axes "data" (replicas of the model) and
    "model" (devices that share a replica). A spec has one entry for each dimension: the axis that splits the dimension,
    or None. All mappings are by parameter name, except `mesh` and `styles`.

    Attributes:
        model: the name of the model's class.
        mesh: the number of devices along each axis.
        shapes: the shapes of the whole parameters.
        tp: specs in the forward and backward pass, split over "model" only.
        specs: specs in which the parameters are kept between steps; with FSDP also split over "data".
        states: specs of the optimizer's state (fp32 master weights and moments), for trained parameters only. With
            ZeRO-1 or FSDP the first dimension that is not split yet, and that the number of replicas divides, is also
            split over "data".
        styles: {module name: its style in the tensor parallel plan}.
    """

    model: str
    mesh: Mesh
    shapes: dict[str, Shape]
    tp: dict[str, Spec]
    specs: dict[str, Spec]
    states: dict[str, Spec]
    styles: dict[str, str]


def layout_of(config: TrainConfig, built: Built) -> Layout:
    """Return how each parameter of a model is split over the devices. The model may be on the "meta" device (without
    values). If `tensor_parallel_size` is above 1, layers are split by the plan that `tp_rules` returns. Raise
    ModelError when the layers or their sizes cannot be split over the devices of `config`."""
    shapes: dict[str, Shape] = {name: tuple(parameter.shape) for name, parameter in built.parameters().items()}
    split = config.tensor_parallel_size > 1
    plan = tp_rules(built.model, shapes, config.tensor_parallel_rules) if split else {}
    layout = lay_out(config, type(built.model).__name__, shapes, plan, built.trained())
    _check_kinds(built, layout.tp)
    return layout


def lay_out(
    config: TrainConfig, model: str, shapes: dict[str, Shape], plan: Mapping[str, str], trained: Iterable[str]
) -> Layout:
    """Return how each parameter of a model is split over the devices, computed from the parameters' shapes and names
    only.

    Args:
        config: the sizes of the mesh, and whether ZeRO-1 or FSDP is used.
        model: the name of the model's class, for errors.
        shapes: {parameter name: its whole shape}.
        plan: the tensor parallel plan, {module pattern: style}, such as "colwise" (split by columns).
        trained: names of the parameters that are trained.
    """
    mesh = config.mesh
    tp = parameter_specs(shapes, plan, mesh, model)
    states = {name: state_spec(shapes[name], tp[name], mesh, config.zero1 or config.fsdp) for name in shapes}
    modules = {name.rpartition(".")[0] for name in shapes}
    styles = {name: style for name in sorted(modules) for pattern, style in plan.items() if covers(pattern, name)}
    kept = {name: states[name] for name in trained}
    return Layout(model, mesh, shapes, tp, states if config.fsdp else tp, kept, styles)


def piece(tensor: Tensor, spec: Spec, world: World) -> Tensor:
    """Return the part of the whole `tensor` that this rank (process of the training) holds, as a view.

    spec: for each dimension, the mesh axis ("data" or "model") that splits it into equal parts, or None; world: this
    rank's position on the mesh of devices."""
    for dimension, axis in enumerate(spec):
        if axis is not None:
            size = tensor.shape[dimension] // getattr(world.mesh, axis)
            tensor = tensor.narrow(dimension, size * getattr(world, axis), size)
    return tensor


def piece_shape(shape: Shape, spec: Spec, mesh: Mesh) -> Shape:
    """Return the shape of the part of a tensor that one rank (process of the training) holds. The shape is the same on
    all ranks.

    shape: of the whole tensor; spec: for each dimension, the axis of the device mesh ("data" or "model") that splits
    it, or None; mesh: the number of devices along each axis."""
    return tuple(size if axis is None else size // getattr(mesh, axis) for size, axis in zip(shape, spec, strict=True))


def piece_start(shape: Shape, spec: Spec, world: World) -> tuple[int, ...]:
    """Return the index, in each dimension of the whole tensor, at which the part of this rank (process of the training)
    begins.

    shape: of the whole tensor; spec: for each dimension, the axis of the device mesh ("data" or "model") that splits
    it, or None; world: this rank's position on the mesh."""
    part = piece_shape(shape, spec, world.mesh)
    return tuple(0 if axis is None else size * getattr(world, axis) for size, axis in zip(part, spec, strict=True))


def writes_piece(spec: Spec, world: World) -> bool:
    """Return whether this rank (process of the training) writes its part of a tensor to a checkpoint: of all ranks that
    hold the same part, only the first one writes the part. spec: for each dimension of the tensor, the axis of the
    device mesh that splits it, or None."""
    return all(axis in spec or getattr(world, axis) == 0 for axis in ("data", "model"))


def piece_copies(spec: Spec, mesh: Mesh) -> int:
    """Return the number of ranks (processes of the training) that hold the same part of a tensor. spec: for each
    dimension, the axis of the device mesh ("data" or "model") that splits it, or None; mesh: the number of devices
    along each axis."""
    return (1 if "data" in spec else mesh.data) * (1 if "model" in spec else mesh.model)


def check_length(config: TrainConfig, length: int) -> None:
    """Raise ModelError when sequence parallelism, which splits the positions of each row over the devices, cannot split
    `length` positions evenly."""
    if config.sequence_parallel and length % config.tensor_parallel_size:
        raise ModelError(
            f"sequence_parallel splits {length} positions over {config.tensor_parallel_size} devices",
            "choose lengths that tensor_parallel_size divides, or set train.sequence_parallel=false",
        )


def _check_kinds(built: Built, tp: dict[str, Spec]) -> None:
    import torch

    for name, spec in tp.items():
        module = built.model.get_submodule(name.rpartition(".")[0])
        if "model" in spec and not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            raise ModelError(
                f"{name} of {type(built.model).__name__} belongs to a {type(module).__name__}; engine native splits linear "
                "layers and embeddings alone",
                "set train.tensor_parallel_size=1, or other train.tensor_parallel_rules",
            )
