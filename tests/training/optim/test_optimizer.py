"""The optimizer against PyTorch's own, and the schedule against its definition."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.training.run_stage import run_stage, traced_and_trained
from tests.training.toys import BERT, packed_classes, scratch
from trnflow.tasks.errors import ModelError
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.optim.adafactor import adafactor
from trnflow.tasks.training.optim.learning_rate import check_learning_rates, learning_rate
from trnflow.tasks.training.optim.optimizer import adamw, clip_factor, scalars, state_shapes


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
    assert torch.allclose(clip_factor(norm, torch.tensor(2.0)), torch.tensor([1.0, 0.5]), atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.0, 0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ("constant", [0.0, 0.5] + [1.0] * 8),
        ("warmup_stable_decay", [0.0, 0.5] + [1.0] * 7 + [0.5]),
        ("cosine", [0.0, 0.5, 1.0, 0.962, 0.854, 0.691, 0.5, 0.309, 0.146, 0.038]),
    ],
)
def test_schedules(schedule: str, expected: list[float]) -> None:
    config = TrainConfig(learning_rate=1.0, schedule=schedule, warmup_ratio=0.2, decay_ratio=0.25)
    assert [learning_rate(config, step, 10) for step in range(10)] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("warmup_ratio", [0.0, 0.03, 0.5, 0.99])
@pytest.mark.parametrize(
    ("schedule", "theirs"), [("linear", "linear"), ("cosine", "cosine"), ("constant", "constant_with_warmup")]
)
def test_every_update_has_the_rate_that_transformers_gives_it(schedule: str, theirs: str, warmup_ratio: float) -> None:
    from transformers import get_scheduler

    for total in (2, 7, 100):
        config = TrainConfig(learning_rate=3e-4, schedule=schedule, warmup_ratio=warmup_ratio)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
        scheduler = get_scheduler(theirs, optimizer, math.ceil(total * warmup_ratio), total)
        rates = []
        for _ in range(total):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        assert [learning_rate(config, step, total) for step in range(total)] == pytest.approx(rates, rel=1e-12, abs=0)


def test_a_run_whose_rates_are_all_0_is_refused_before_it_trains(tmp_path: Path) -> None:
    packed = packed_classes(tmp_path / "packed", rows=8, lengths=[8])
    config = TrainConfig(engine="native", global_batch=8, epochs=1, warmup_ratio=0.1)
    with pytest.raises(ModelError, match=r"every update is 0: the run has 1 in all.*train.warmup_ratio=0\.1") as caught:
        run_stage(traced_and_trained, config, tmp_path / "run", model=scratch(**BERT), packed=packed)
    assert "train.warmup_ratio=0," in caught.value.fix
    for fields in ({"warmup_ratio": 0.0}, {"epochs": 2}):
        check_learning_rates(config.model_copy(update=fields), fields.get("epochs", 1))  # type: ignore[call-overload]


def test_the_learning_rate_grows_with_the_batch() -> None:
    config = TrainConfig(learning_rate=5e-5, learning_rate_batch=12, global_batch=64, schedule="constant")
    assert learning_rate(config, 0, 10) == pytest.approx(5e-5 / 12 * 64)
    assert learning_rate(TrainConfig(learning_rate=5e-5, global_batch=64), 0, 10) == 5e-5
