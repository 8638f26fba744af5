"""Split a model over the mesh: tensor parallel layers as DTensors, fully sharded layers by FSDP2.

Between layers, activations are plain tensors, whole on every rank along "model". With sequence parallelism the residual
stream between the first and the last layer is split by positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import Module, Parameter

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.layout.slices import ShardLayout, piece, piece_shape
from trnflow.tasks.training.model.build import checkpointed_layers, layers_of
from trnflow.tasks.training.model.lora import base_layer
from trnflow.tasks.training.partition_specs import SHARED
from trnflow.tasks.training.shared_types import Built
from trnflow.tasks.training.world import World

GATHERED = ("colwise_gather_output", "colwise_rep")


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, sharing memory; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradient_of(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    """Return this rank's part of a parameter's gradient as a plain tensor; zeros for None."""
    if gradient is None:
        return torch.zeros_like(local_tensor(parameter))
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements).to_local()
    return gradient.contiguous()


def split_layers(config: TrainConfig, built: Built, layout: ShardLayout, world: World) -> None:
    """Apply tensor and sequence parallelism to the model in place.

    Each rank must hold the whole parameters with equal values; afterwards it holds its parts.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    tied = _tied(built.model)
    mesh = world.groups["model"]
    below = {id(module) for layer in _layers(config, built) for module in layer.modules()}
    inside = {name for name, module in built.model.named_modules() if id(module) in below}
    _split_parameters(built, layout, world)
    plan = {
        name: _style(layout.styles.get(name, "colwise_rep"), scatters=name in inside)
        for name in _split_modules(built.model, layout, tied)
    }
    parallelize_module(built.model, mesh, plan, src_data_rank=None)
    for (module, leaf), *others in tied:
        for other, other_leaf in others:
            other._parameters[other_leaf] = module._parameters[leaf]
    named = built.parameters()
    for name in built.frozen:  # the styles have replaced the parameters
        named[name].requires_grad_(False)
    for name in {
        base_layer(name).rpartition(".")[0]
        for name, style in layout.styles.items()
        if style == "colwise" and name in plan
    }:
        _gather_input(built.model.get_submodule(name), mesh, sharded=name in inside)
    if config.sequence_parallel:
        _split_positions(checkpointed_layers(built.model), mesh)


def partial_gradients(config: TrainConfig, built: Built, layout: ShardLayout) -> set[str]:
    """Return the replicated parameters whose gradients must be summed over "model"."""
    # each rank uses these for some positions or heads only
    own = {n for n in layout.tp if layout.styles.get(n.rpartition(".")[0]) == "replicated_with_grad_allreduce"}
    if not config.sequence_parallel:
        return own
    split = set(_layers(config, built))
    layers = [f"{name}." for name, module in built.model.named_modules() if module in split]
    planned = layout.styles.keys()
    return own | {n for n in layout.tp if n.startswith(tuple(layers)) and n.rpartition(".")[0] not in planned}


def shard_fully(config: TrainConfig, built: Built, layout: ShardLayout, world: World) -> None:
    """Apply FSDP2 in place: a data parallel rank keeps its part of what `layout` splits over "data".

    A layer's parameters are gathered together; those outside layers are one more group. With ZeRO-1 they stay gathered
    until the update.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    named = built.parameters()
    dimensions = {id(named[name]): spec.index("data") for name, spec in layout.specs.items() if "data" in spec}
    options: dict[str, Any] = {
        "mesh": world.groups["data"] if world.mesh.copies == 1 else world.groups["copies", "shards"],
        "shard_placement_fn": lambda parameter: Shard(dimensions[id(parameter)]),
        # with fp32 shards a reduced gradient stays in fp32: FSDP would round it to the dtype of a bf16 shard
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=getattr(torch, config.dtype), reduce_dtype=torch.float32, cast_forward_inputs=False
        ),
        "ignored_params": {parameter for parameter in named.values() if id(parameter) not in dimensions},
        "reshard_after_forward": False if config.zero1 else None,
    }
    for module in (*layers_of(built.model), built.model):
        fully_shard(module, **options)
    for module in built.model.modules():
        if isinstance(module, FSDPModule):
            # summed, not averaged: the loss is already divided by the targets of all ranks
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def check_placed(built: Built, layout: ShardLayout) -> None:
    """Raise ModelError when this rank's part of a parameter has another shape than `layout` says."""
    for name, parameter in built.parameters().items():
        held = tuple(local_tensor(parameter).shape)
        planned = piece_shape(layout.shapes[name], layout.specs[name], layout.mesh)
        if held != planned:
            raise ModelError(
                f"{name} of {layout.model} should have shape {planned} after splitting, and has {held}",
                "this is a defect of trnflow: report it with the recipe",
            )


def _split_parameters(built: Built, layout: ShardLayout, world: World) -> None:
    """Replace each split parameter by this rank's part."""
    parts: dict[int, Parameter] = {}
    for name, parameter in built.parameters().items():
        spec = layout.tp[name]
        if "model" in spec or layout.styles.get(name.rpartition(".")[0]) == SHARED:
            # in memory of its own, so that the whole can be freed
            mine = piece(parameter.detach(), spec, world).clone(memory_format=torch.contiguous_format)
            # a shared one stays whole as a DTensor: reading it sums the gradients of all ranks
            shards = [Shard(spec.index("model")) if "model" in spec else Replicate()]
            parts[id(parameter)] = Parameter(DTensor.from_local(mine, world.groups["model"], shards, run_check=False))
    for module in built.model.modules():
        for leaf, old in module._parameters.items():
            module._parameters[leaf] = parts.get(id(old), old)


def _style(style: str, *, scatters: bool) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    if style in GATHERED:
        return ColwiseParallel(output_layouts=Replicate())
    if style == "colwise":
        return ColwiseParallel()
    output = Shard(1) if scatters else Replicate()
    if style == "rowwise":
        return RowwiseParallel(output_layouts=output)
    return RowwiseParallel(input_layouts=Replicate(), output_layouts=output)


def _split_modules(model: Module, layout: ShardLayout, tied: list[list[tuple[Module, str]]]) -> list[str]:
    """Return the names of the modules whose weight, own or tied, the plan splits."""
    owners = {id(model.get_submodule(n.rpartition(".")[0])) for n, spec in layout.tp.items() if "model" in spec}
    for group in tied:
        if any(id(module) in owners for module, _ in group):
            owners.update(id(module) for module, _ in group)
    return [name for name, module in model.named_modules() if id(module) in owners]


def _gather_input(module: Module, mesh: Any, *, sharded: bool) -> None:
    """Give `module` its hidden states as one whole DTensor."""
    # the gradients of all layers that read the one copy are summed before they are reduced
    placements = [Shard(1) if sharded else Replicate()]

    def gathered(hidden: Any) -> Any:
        return DTensor.from_local(hidden, mesh, placements, run_check=False).redistribute(placements=[Replicate()])

    def before(module: Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
        if arguments:
            return (gathered(arguments[0]), *arguments[1:]), options
        if "hidden_states" not in options:
            raise ModelError(
                f"{type(module).__name__} gets its hidden states in an unknown way", "set train.tensor_parallel_size=1"
            )
        return arguments, {**options, "hidden_states": gathered(options["hidden_states"])}

    module.register_forward_pre_hook(before, with_kwargs=True)


def _split_positions(layers: list[Module], mesh: Any) -> None:
    def moved(hidden: Tensor, source: Any, target: Any) -> Any:
        return DTensor.from_local(hidden, mesh, [source], run_check=False).redistribute(placements=[target]).to_local()

    def before(module: Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (moved(arguments[0], Replicate(), Shard(1)), *arguments[1:])

    def after(module: Module, arguments: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (moved(output[0], Shard(1), Replicate()), *output[1:])
        return moved(output, Shard(1), Replicate())

    layers[0].register_forward_pre_hook(before)
    layers[-1].register_forward_hook(after)


def _layers(config: TrainConfig, built: Built) -> list[Module]:
    """Return the layers between which positions are split; [] without sequence parallelism."""
    return checkpointed_layers(built.model) if config.sequence_parallel else []


def _tied(model: Module) -> list[list[tuple[Module, str]]]:
    """Return the places of each parameter that occurs in several modules."""
    places_by_id: dict[int, list[tuple[Module, str]]] = {}
    for module in model.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                places_by_id.setdefault(id(parameter), []).append((module, leaf))
    return [places for places in places_by_id.values() if len(places) > 1]
