"""The optimizer against PyTorch's own, and the schedule against its definition."""

from __future__ import annotations

import pytest
import torch

from tasks.train import TrainConfig
from tasks.training.adafactor import adafactor
from tasks.training.optim import adamw, clipped, learning_rate, scalars, state_shapes


def test_adamw_is_pytorch_s() -> None:
    torch.manual_seed(0)
    config = TrainConfig(learning_rate=0.01, weight_decay=0.1, schedule="constant", max_grad_norm=None)
    weight = torch.randn(5, 3)
    theirs = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    first = second = torch.zeros(5, 3)
    for step in range(5):
        theirs.grad = torch.randn(5, 3)
        at = [torch.tensor(value) for value in scalars(config, step, 5, 7)]
        weight, first, second = adamw(weight, first, second, gradient=theirs.grad, at=at)
        optimizer.step()
    torch.testing.assert_close(weight, theirs.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(5, 3), (4,), (2, 5, 3)])
def test_adafactor_is_pytorch_s(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    config = TrainConfig(optimizer="adafactor", learning_rate=0.01, weight_decay=0.0, schedule="constant")
    weight = torch.randn(shape)
    theirs = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.Adafactor([theirs], lr=0.01)
    state = [torch.zeros(size) for size in state_shapes("adafactor", shape).values()]
    for step in range(5):
        theirs.grad = torch.randn(shape)
        at = scalars(config, step, 5, 7)
        weight, *state = adafactor(weight, *state, gradient=theirs.grad, at=at)
        optimizer.step()
    torch.testing.assert_close(weight, theirs.detach(), rtol=1e-6, atol=1e-7)


def test_a_bias_is_not_decayed() -> None:
    config = TrainConfig(weight_decay=0.5)
    at = [torch.tensor(value) for value in scalars(config, 0, 5, 7)]
    zeros = torch.zeros(3)
    assert torch.equal(adamw(torch.ones(3), zeros, zeros, gradient=zeros, at=at)[0], torch.ones(3))


def test_clipping_only_shortens() -> None:
    norm = torch.tensor([0.5, 4.0])
    assert torch.allclose(clipped(norm, torch.tensor(2.0)), torch.tensor([1.0, 0.5]), atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("constant", [0.5] + [1.0] * 9),
        ("warmup_stable_decay", [0.5] + [1.0] * 5 + [1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.962, 0.854, 0.691, 0.5, 0.309, 0.146, 0.038]),
    ],
)
def test_schedules(schedule: str, expected: list[float]) -> None:
    config = TrainConfig(learning_rate=1.0, schedule=schedule, warmup_ratio=0.2, decay_ratio=0.5)
    assert [learning_rate(config, step, 10) for step in range(10)] == pytest.approx(expected, abs=1e-3)


def test_the_learning_rate_grows_with_the_batch() -> None:
    config = TrainConfig(learning_rate=5e-5, learning_rate_batch=12, global_batch=64, schedule="constant")
    assert learning_rate(config, 0, 10) == pytest.approx(5e-5 / 12 * 64)
    assert learning_rate(TrainConfig(learning_rate=5e-5, global_batch=64), 0, 10) == 5e-5
