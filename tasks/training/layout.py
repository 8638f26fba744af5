"""Which part of each tensor a rank holds: the plan, applied to a model. No torch objects are made or moved here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.errors import ModelError
from tasks.training.config import TrainConfig
from tasks.training.model import Built
from tasks.training.plan import Mesh, Shape, Spec, covers, parameter_specs, state_spec
from tasks.training.ranks import World
from tasks.training.rules import tp_rules

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Of a model's parameters, by name. model: its class. tp: what "model" alone splits, as forward and backward see it; specs:
    as the parameter lies between steps, with `fsdp` over "data" as well; states: the fp32 master and the moments of each that
    is trained; styles: module -> style of the plan."""

    model: str
    mesh: Mesh
    shapes: dict[str, Shape]
    tp: dict[str, Spec]
    specs: dict[str, Spec]
    states: dict[str, Spec]
    styles: dict[str, str]


def layout_of(config: TrainConfig, built: Built) -> Layout:
    """Also of a model on "meta". ModelError where the model can't be split so."""
    shapes: dict[str, Shape] = {name: tuple(parameter.shape) for name, parameter in built.parameters().items()}
    split = config.tensor_parallel_size > 1
    plan = tp_rules(built.model, shapes, config.tensor_parallel_rules) if split else {}
    layout = lay_out(config, type(built.model).__name__, shapes, plan, built.trained())
    _check_kinds(built, layout.tp)
    return layout


def lay_out(
    config: TrainConfig, model: str, shapes: dict[str, Shape], plan: Mapping[str, str], trained: Iterable[str]
) -> Layout:
    """Of parameters of these shapes. model: its class; plan: module -> tensor parallel style; trained: the names of some."""
    mesh = Mesh(config.data_parallel, config.tensor_parallel_size)
    tp = parameter_specs(shapes, plan, mesh, model)
    states = {name: state_spec(shapes[name], tp[name], mesh, config.zero1 or config.fsdp) for name in shapes}
    modules = {name.rpartition(".")[0] for name in shapes}
    styles = {name: style for name in sorted(modules) for pattern, style in plan.items() if covers(pattern, name)}
    kept = {name: states[name] for name in trained}
    return Layout(model, mesh, shapes, tp, states if config.fsdp else tp, kept, styles)


def piece(tensor: Tensor, spec: Spec, world: World) -> Tensor:
    """The part of a whole tensor that this rank holds under `spec`: a view."""
    for dimension, axis in enumerate(spec):
        if axis is not None:
            size = tensor.shape[dimension] // getattr(world.mesh, axis)
            tensor = tensor.narrow(dimension, size * getattr(world, axis), size)
    return tensor


def held(shape: Shape, spec: Spec, mesh: Mesh) -> Shape:
    """The shape of a rank's piece."""
    return tuple(size if axis is None else size // getattr(mesh, axis) for size, axis in zip(shape, spec, strict=True))


def start(shape: Shape, spec: Spec, world: World) -> tuple[int, ...]:
    """Where this rank's piece of a tensor of `shape` begins."""
    part = held(shape, spec, world.mesh)
    return tuple(0 if axis is None else size * getattr(world, axis) for size, axis in zip(part, spec, strict=True))


def writes(spec: Spec, world: World) -> bool:
    """Whether this rank is the first of those that hold the same piece."""
    return all(axis in spec or getattr(world, axis) == 0 for axis in ("data", "model"))


def copies(spec: Spec, mesh: Mesh) -> int:
    """How many ranks hold the same piece."""
    return (1 if "data" in spec else mesh.data) * (1 if "model" in spec else mesh.model)


def check_length(config: TrainConfig, length: int) -> None:
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
