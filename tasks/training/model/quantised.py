"""Frozen linear layers whose weights take 8 or 4 bits, multiplied in the dtype that computes: the base of QLoRA.

int8: a scale for each output, the weights of bitsandbytes' `load_in_8bit`. nf4: 16 levels and a scale for each 64
numbers, those of its `load_in_4bit` (https://arxiv.org/abs/2305.14314), without double quantisation. Inputs are never
quantised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, functional

from trnflow.tasks.errors import ModelError
from trnflow.tasks.system.optional_packages import require_bitsandbytes
from trnflow.tasks.training.model.heads import in_head
from trnflow.tasks.training.model.lora import unwrapped
from trnflow.tasks.training.partition_specs import Shape

BLOCK = 64
MOST_OUTSIDE = 0.1
"""The share of the body's matrices that may lie outside linear layers."""


class Format(NamedTuple):
    """quantise: a matrix to (codes, fp32 scales); dequantise: both and the matrix's shape to fp32 or a narrower dtype."""

    quantise: Callable[[Tensor], tuple[Tensor, Tensor]]
    dequantise: Callable[[Tensor, Tensor, Shape, torch.dtype], Tensor]


class QuantisedLinear(Module):
    """Replaces `linear`. Codes and scales are buffers: no layout, optimizer or checkpoint has them.

    dtype: to which weights are rounded before they are quantised, that of training.
    """

    weight: Tensor
    scales: Tensor

    def __init__(self, linear: Any, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        self._kind, self._shape = kind, tuple(linear.weight.shape)
        self.out_features, self.in_features = self._shape
        codes, scales = FORMATS[kind].quantise(linear.weight.detach().to(dtype))
        self.register_buffer("weight", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.bias = linear.bias
        self.packed_numbers = linear.weight.numel()
        self.packed_bytes = codes.nbytes + scales.nbytes

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        return FORMATS[self._kind].dequantise(self.weight, self.scales, self._shape, dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        product: Tensor = _Product.apply(hidden, self)  # type: ignore[no-untyped-call]
        return product


class _Product(torch.autograd.Function):
    """A layer's output. The backward pass dequantises again: kept until then, the weights would take what they did."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, layer: QuantisedLinear) -> Tensor:
        context.layer = layer
        return functional.linear(hidden, layer.dequantised(hidden.dtype), layer.bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ context.layer.dequantised(gradient.dtype), None


def body_layers(model: Any) -> dict[str, Module]:
    """Return the linear layers outside the head that do not share the input embedding's weights."""
    from transformers.pytorch_utils import Conv1D

    shared = {id(model.get_input_embeddings().weight)}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and id(module.weight) not in shared and not in_head(name)
    }


def quantised_layers(model: Any) -> list[str]:
    """Return the layers of a model without adapters that `base_dtype` quantises: of `body_layers` all but the output
    layer."""
    output = model.get_output_embeddings()
    return [n for n, layer in body_layers(model).items() if layer is not output and hasattr(layer, "in_features")]


def quantise(
    model: Any, layers: Collection[str], kind: str, dtype: torch.dtype, *, trained: Collection[str] = ()
) -> None:
    """Quantise `quantised_layers` in place, those too that adapters were put around since, and free their weights. trained:
    parameters that stay as they are because they are trained."""
    _check_share(model, layers, kind, trained)
    for name in layers:
        parent, leaf = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        if hasattr(model.get_submodule(name), "base_layer"):
            parent, leaf = model.get_submodule(name), "base_layer"
        setattr(parent, leaf, QuantisedLinear(getattr(parent, leaf), kind, dtype))


def rounded(value: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """Return what a layer of weight `value` multiplies with: quantised and dequantised, in `dtype`."""
    codes, scales = FORMATS[kind].quantise(value.to(dtype))
    return FORMATS[kind].dequantise(codes, scales, tuple(value.shape), dtype)


def _check_share(model: Any, layers: Collection[str], kind: str, trained: Collection[str]) -> None:
    """Raise ModelError when many of the body's weights are not in `layers`, as those of experts or of GPT-2."""
    adapters = {id(p) for name, p in model.named_parameters() if ".lora_" in name or name in trained}
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    output = unwrapped(model.get_output_embeddings())
    weights: list[Any] = [model.get_submodule(name).weight for name in layers]  # of an adapted layer its base's
    left_out = adapters | embeddings | {id(weight) for weight in weights}
    left_out |= {id(output.weight)} if output is not None else set()
    outside = {
        n: p.numel() for n, p in model.named_parameters() if p.ndim > 1 and id(p) not in left_out and not in_head(n)
    }
    inside = sum(weight.numel() for weight in weights)
    if sum(outside.values()) > MOST_OUTSIDE * (inside + sum(outside.values())):
        largest = max(outside, key=lambda name: outside[name])
        raise ModelError(
            f"train.lora.base_dtype={kind} quantises linear layers, and most weights of {type(model).__name__} would stay as "
            f"they are, such as {largest}",
            "leave train.lora.base_dtype out, or choose a model of linear layers, such as Llama, Mistral or Qwen",
        )


def _quantise_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(1, keepdim=True).float()
    # a row of zeros has scale 0
    return torch.round(weight * (127.0 / scales.clamp(min=1e-30))).to(torch.int8), scales


def _dequantise_int8(codes: Tensor, scales: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    return (codes * (scales / 127.0)).to(dtype)


def _quantise_nf4(weight: Tensor) -> tuple[Tensor, Tensor]:
    require_bitsandbytes("train.lora.base_dtype is nf4")
    # imported by name: an import statement would put its version into the keys of all trainings. It registers the
    # operators; an import in each pass would break a compiled graph
    import_module("bitsandbytes")
    codes, scales = torch.ops.bitsandbytes.quantize_4bit(weight, BLOCK, "nf4", torch.uint8)
    return codes, scales


def _dequantise_nf4(codes: Tensor, scales: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    weight: Tensor = torch.ops.bitsandbytes.dequantize_4bit(codes, scales, BLOCK, "nf4", shape, dtype)
    return weight


FORMATS = {"int8": Format(_quantise_int8, _dequantise_int8), "nf4": Format(_quantise_nf4, _dequantise_nf4)}
"""{`train.lora.base_dtype`: how a weight is stored}."""
