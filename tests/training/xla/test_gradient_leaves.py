"""Gradients that are kept apart by replica sum up to autograd's own, whatever the layers do with their parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trnflow.tasks.training.xla.gradient_leaves import GradientLeaves
from trnflow.tasks.training.xla.gspmd import use_einsum, write_out_norms

WIDTH, WORDS, SHARES = 8, 12, 2


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(hidden.dtype)


class Model(nn.Module):
    """Words and places, norms, a bias, an output layer tied to the words, a layer whose weight is also read outside it, one that
    is given no batch, and a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(4, WIDTH)
        self.norm, self.scaled = nn.LayerNorm(WIDTH), Scaled()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.relative, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.own = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(3)[None])
        hidden = self.scaled(self.words(ids) + self.relative(places))
        hidden = torch.tanh(self.first(self.norm(hidden))) @ self.own
        return self.head(self.second(hidden) + nn.functional.linear(hidden, self.second.weight.tanh()))


def gradients(model: nn.Module, ids: torch.Tensor, shares: int) -> dict[str, torch.Tensor]:
    """Reduced; of a pass that `Leaves` arranges."""
    parameters = dict(model.named_parameters())
    specs: dict[str, Any] = {name: (None,) * parameter.dim() for name, parameter in parameters.items()}
    leaves = GradientLeaves(model, parameters, specs, specs, lambda tensor, spec: tensor, shares)
    use_einsum(model)
    write_out_norms(model)
    leaves.put()
    model(ids).float().square().mean().backward()
    found = leaves.take()
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32 and tuple(gradient.shape) == leaves.summed(name)[0]
    assert all(parameter.grad is None for parameter in parameters.values())
    return leaves.reduced(found)


def autograd(model: nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    model(ids).float().square().mean().backward()
    return {name: parameter.grad.float() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shares", [1, SHARES])
def test_they_are_autograd_s(shares: int, dtype: torch.dtype) -> None:
    ids = torch.randint(0, WORDS, (4, 3), generator=torch.Generator().manual_seed(1))
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Model().to(dtype))
    wanted, found = autograd(models[0], ids), gradients(models[1], ids, shares)
    assert found.keys() == wanted.keys()
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.02}
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], **tolerance, msg=name)


def test_only_linear_layers_keep_theirs_apart() -> None:
    model = Model()
    parameters = dict(model.named_parameters())
    specs: dict[str, Any] = {name: (None,) * parameter.dim() for name, parameter in parameters.items()}
    leaves = GradientLeaves(model, parameters, specs, specs, lambda tensor, spec: tensor, SHARES)
    apart = {name for name in parameters if leaves.summed(name)[1][:1] == ("data",)}
    assert apart == {"first.weight", "first.bias", "second.weight", "relative.weight", "relative.bias"}
