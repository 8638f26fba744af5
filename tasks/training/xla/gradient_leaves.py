"""Choose the leaves of engine xla, so that gradients are summed over the replicas in fp32 and as rarely as possible.

A linear layer's gradient is apart for each replica until the update: 3.3 GB an update for Llama-2-7B at tensor parallel
8, and 67 MB a pass for embeddings and norms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trnflow.tasks.training.partition_specs import Shape, Spec
from trnflow.tasks.training.xla.gspmd import Mark


class ParameterUse(NamedTuple):
    """A place where the model uses a trained parameter; shared parameters have several.

    Attributes:
        layer: The module that holds it.
        attribute: Its name there, such as "weight".
        kind: "linear": a leaf for each replica; "small" (embeddings, norms): an fp32 copy is the leaf; "other": the
            parameter.
    """

    name: str
    layer: Any
    attribute: str
    kind: str

    @property
    def place(self) -> str:
        """The attribute of the layer that holds the leaf during a pass."""
        return f"{self.attribute}_apart" if self.kind == "linear" else self.attribute


class GradientLeaves:
    """The tensors whose gradients autograd computes: puts them into a model before each pass, and takes their gradients after.

    Args:
        parameters: {name: trained parameter}.
        specs: {name: partition spec}.
        states: {name: spec of the gradient summed over the replicas}.
        mark: Annotates a tensor with a spec and returns it.
        shares: The number of replicas, each with a leaf of its own; 1: the parameters are the leaves.
    """

    def __init__(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        specs: Mapping[str, Spec],
        states: Mapping[str, Spec],
        mark: Mark,
        shares: int,
    ) -> None:
        # GSPMD alone would sum each gradient in each pass, in the dtype of the computation
        self._parameters, self._specs, self._states, self._mark, self._shares = parameters, specs, states, mark, shares
        self._uses = list(parameter_uses(model, parameters, apart=shares > 1))
        times = Counter(use.name for use in self._uses)
        self._apart = {use.name for use in self._uses if use.kind == "linear" and times[use.name] == 1}
        self._leaves: list[Any] = []
        for layer in {id(use.layer): use.layer for use in self._uses if use.kind == "small"}.values():
            _keep_dtype(layer, next(layer.parameters(recurse=False)).dtype)

    def summed(self, name: str) -> tuple[Shape, Spec]:
        """Return (shape, spec) of a parameter's gradients, summed over passes but not over replicas."""
        shape = tuple(self._parameters[name].shape)
        if name in self._apart:
            # one for each replica: nothing is sent before the update
            return (self._shares, *shape), ("data", *self._specs[name])
        return shape, self._states[name]

    def put(self) -> None:
        """Make the leaves of one pass and put them into the layers."""
        self._leaves = [self._leaf(use) for use in self._uses]
        for use, leaf in zip(self._uses, self._leaves, strict=True):
            if use.kind != "other":
                vars(use.layer)[use.place] = leaf

    def take(self) -> dict[str, Tensor]:
        """Return the pass's gradients in fp32, laid out as `summed` says, and remove the leaves."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self._parameters}
        for use, leaf in zip(self._uses, self._leaves, strict=True):
            vars(use.layer).pop(use.place, None)
            parts[use.name].append(self._part(use, _gradient(leaf)))
        self._leaves = []
        sums = {name: sum(some[1:], start=some[0]) for name, some in parts.items()}
        return {name: self._mark(gradient, self.summed(name)[1]) for name, gradient in sums.items()}

    def reduced(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients, summed over the passes, summed over the replicas too."""
        return {
            name: self._mark(gradient.sum(0), self._states[name]) if name in self._apart else gradient
            for name, gradient in gradients.items()
        }

    def _leaf(self, use: ParameterUse) -> Any:
        parameter, spec = self._parameters[use.name], self._specs[use.name]
        if use.kind == "other":
            return parameter
        if use.kind == "small":
            return self._mark(parameter.detach().to(torch.float32, copy=True), spec).requires_grad_()
        unread = torch.zeros((self._shares, *parameter.shape), dtype=parameter.dtype, device=parameter.device)
        return self._mark(unread, ("data", *spec)).requires_grad_()

    def _part(self, use: ParameterUse, gradient: Tensor) -> Tensor:
        parameter = self._parameters[use.name]
        if use.kind == "linear" and parameter.grad is not None:  # the model uses the parameter also outside its layer
            gradient = gradient + _gradient(parameter) / self._shares
        if use.name in self._apart:
            return gradient
        if use.kind == "linear":
            return self._mark(gradient, ("data", *self._specs[use.name])).sum(0)
        # laid out as the parameter, then as its state: in one step GSPMD would use several collectives
        return self._mark(gradient, self._specs[use.name]).clone()


def parameter_uses(model: Any, parameters: Mapping[str, Any], *, apart: bool) -> Iterator[ParameterUse]:
    """Yield each use of a trained parameter. apart: whether separate leaves are needed."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    for layer in model.modules():
        for attribute, parameter in layer._parameters.items():
            if id(parameter) in names:
                yield ParameterUse(names[id(parameter)], layer, attribute, _kind(layer) if apart else "other")


def _kind(layer: Any) -> str:
    if type(layer) is torch.nn.Linear:
        return "linear"
    # a model's own norm, or LayerNorm (written out here); torch's other norms take no weight of another dtype
    norm = type(layer) is torch.nn.LayerNorm or not type(layer).__module__.startswith("torch.")
    vectors = all(parameter.dim() == 1 for parameter in layer.parameters(recurse=False))
    return "small" if type(layer) is torch.nn.Embedding or (norm and vectors and not any(layer.children())) else "other"


def _keep_dtype(layer: Any, dtype: Any) -> None:
    """Convert the layer's result back to `dtype`."""
    # a weight in fp32 makes the result fp32
    layer.register_forward_hook(lambda layer, given, output: output.to(dtype))


def _gradient(leaf: Any) -> Tensor:
    gradient: Tensor = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).float()
    leaf.grad = None
    return gradient
