"""Annotations and rewritten layers that make GSPMD insert the intended collectives on a mesh (data, model).

XLA's CPU graphs show a reduce-scatter as an all-reduce and a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from trnflow.tasks.training.model.lora import base_layer
from trnflow.tasks.training.partition_specs import Spec, covers

Mark = Callable[[Tensor, Spec], Tensor]  # annotates a tensor in place
WHOLE_ROWS: Spec = ("data", None, None)  # activations: [rows, positions, features]
FEATURES: Spec = ("data", None, "model")
POSITIONS: Spec = ("data", "model", None)


def annotate(model: Any, rules: Mapping[str, str], mark: Mark, *, sequence_parallel: bool) -> None:
    """Register hooks that annotate the activations around each layer that the plan splits.

    Args:
        rules: {module pattern: style}.
        mark: Annotates a tensor with a spec.
        sequence_parallel: Whether the residual stream's positions are split over "model".
    """
    # gathered before a layer split by columns, scattered behind one split by rows, forward and backward: Megatron's f
    # and g (Korthikanti et al. 2022, arXiv 2205.05198)
    stream = POSITIONS if sequence_parallel else WHOLE_ROWS

    # guessing, GSPMD gathered whole weights: 3.2 MB a device and pass in a 2-layer Llama of width 128, now 0.55 of
    # activations
    def lay(tensor: Any, forward: Spec, backward: Spec) -> Any:
        return _layout_function().apply(tensor, mark, forward, backward) if tensor.dim() == len(forward) else tensor

    def gathered(tensor: Any) -> Any:
        return lay(lay(tensor, stream, stream), WHOLE_ROWS, WHOLE_ROWS)

    entered = set()
    for name, module in model.named_modules():
        style = next((style for pattern, style in rules.items() if covers(pattern, name)), None)
        if style == "colwise":
            entered.add(base_layer(name).rpartition(".")[0])
            _after(module, lambda output: lay(output, FEATURES, FEATURES))
        elif style in ("colwise_rep", "colwise_gather_output"):
            _before(module, gathered)
            _after(module, lambda output: lay(output, FEATURES, FEATURES))
        elif style in ("rowwise", "rowwise_rep"):
            _before(module, lambda given: lay(given, FEATURES, FEATURES))
            _after(module, lambda output: lay(output, stream, WHOLE_ROWS))
        elif style == "embedding_rowwise":
            _after(module, lambda output: lay(lay(output, WHOLE_ROWS, WHOLE_ROWS), stream, WHOLE_ROWS))
    for name, module in model.named_modules():
        if name in entered:  # several layers share one gathered input
            _before(module, gathered)


def use_einsum(model: Any) -> None:
    """Make the model's linear layers einsums, in place; those with leaves compute a gradient for each replica's rows."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            # PyTorch's product merges rows and positions, which are split over different axes
            module.forward = partial(_linear, module)  # type: ignore[method-assign]


def write_out_norms(model: Any) -> None:
    """Make the model's LayerNorms plain operations, in place, so that each device normalises its own rows."""
    for module in model.modules():
        if type(module) is torch.nn.LayerNorm and len(module.normalized_shape) == 1:
            # torch_xla lowers LayerNorm to a batch norm over merged dimensions: 6 gathers of the whole batch in a
            # 2-layer BERT
            module.forward = partial(_layer_norm, module)  # type: ignore[method-assign]


def _linear(module: Any, given: Tensor) -> Tensor:
    leaves = [vars(module).get(f"{name}_apart") for name in ("weight", "bias")]
    if any(leaf is not None for leaf in leaves):
        output: Tensor = _linear_apart().apply(given, module.weight, module.bias, *leaves)
        return output
    output = torch.einsum("...i,oi->...o", given, module.weight)
    return output if module.bias is None else output + module.bias


@cache
def _linear_apart() -> Any:
    """Return the autograd function of a linear layer with gradients [shares, out, in] and [shares, out]."""

    class Apart(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, given: Any, weight: Any, bias: Any, *leaves: Any) -> Any:
            context.save_for_backward(given, weight)
            # a leaf tells the shape of its gradient; its values are never read
            context.shares = [None if leaf is None else len(leaf) for leaf in leaves]
            output = torch.einsum("...i,oi->...o", given, weight)
            return output if bias is None else output + bias

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            given, weight = context.saved_tensors
            below = torch.einsum("...o,oi->...i", gradient, weight) if context.needs_input_grad[0] else None
            of_weight, of_bias = context.shares
            return (
                below,
                None,
                None,
                None if of_weight is None else _by_shares(of_weight, gradient, given),
                None if of_bias is None else _by_shares(of_bias, gradient),
            )

    return Apart


def _by_shares(shares: int, gradient: Any, *given: Any) -> Any:
    """Return a gradient for each share. given: the layer's input for the weight's, nothing for the bias's."""
    between = "abcdefgh"[: gradient.dim() - 1]
    if len(gradient) % shares:  # the input has no batch dimension (relative positions): each share gets an equal part
        whole = (
            torch.einsum(f"{between}o,{between}i->oi", gradient, *given) if given else gradient.flatten(0, -2).sum(0)
        )
        return (whole / shares).expand(shares, *whole.shape)
    parts = [tensor.reshape(shares, -1, *tensor.shape[1:]) for tensor in (gradient, *given)]
    if given:
        return torch.einsum(f"s{between}o,s{between}i->soi", *parts)
    return parts[0].flatten(1, -2).sum(1)


def _layer_norm(module: Any, hidden: Tensor) -> Tensor:
    wide = hidden.float()
    centred = wide - wide.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + module.eps)
    scaled = scaled.to(hidden.dtype)
    return scaled if module.weight is None else scaled * module.weight + (0 if module.bias is None else module.bias)


def _before(module: Any, change: Callable[[Any], Any]) -> None:
    """Apply `change` to the first tensor that the module is called with."""

    def hook(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if given:
            return (change(given[0]), *given[1:]), named
        first = next(name for name, value in named.items() if isinstance(value, torch.Tensor))
        return given, {**named, first: change(named[first])}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _after(module: Any, change: Callable[[Any], Any]) -> None:
    module.register_forward_hook(lambda module, given, output: change(output))


@cache
def _layout_function() -> Any:
    """Return the autograd function that annotates a tensor by `forward` and its gradient by `backward`."""

    class Placing(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, tensor: Any, mark: Mark, forward: Spec, backward: Spec) -> Any:
            context.mark, context.spec = mark, backward
            return mark(tensor.clone(), forward)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return context.mark(gradient.clone(), context.spec), None, None, None

    return Placing
