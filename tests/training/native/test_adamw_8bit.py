"""AdamW with moments in 8 bits: bitsandbytes' own curve, the same bits when resumed, a quarter of the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.training.memory.test_memory import row_meta
from tests.training.native.test_updates import CPU, update_of
from tests.training.toys import LLAMA, scratch
from trnflow.tasks.training.checkpoint import shards
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.memory.traced_memory import trace_memory
from trnflow.tasks.training.native.engine import UPDATES
from trnflow.tasks.training.optim.optimizer import scalars
from trnflow.tasks.training.partition_specs import Shape
from trnflow.tasks.training.shared_types import TensorSlice
from trnflow.tasks.training.world import ALONE

SHAPES: dict[str, Shape] = {"matrix": (70, 100), "norm": (100,), "small": (8, 8)}
RATE, STEPS = 1e-2, 20


def config(**fields: Any) -> TrainConfig:
    return TrainConfig(engine="native", optimizer="adamw_8bit", learning_rate=RATE, schedule="constant", **fields)


def weights() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=random) for shape in SHAPES.values()]


def gradients(step: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=random) * 10 ** float(step % 3) for shape in SHAPES.values()]


def updated(update: Any, parameters: list[torch.Tensor], steps: range, good: bool = True) -> None:
    for step in steps:
        at = scalars(config(), step, STEPS, 1)
        update.apply(parameters, gradients(step), torch.ones(()), torch.tensor(good), at)


def test_weights_are_those_of_bitsandbytes() -> None:
    """Their moments of small parameters are fp32 too; an update moves a weight by about the learning rate."""
    import bitsandbytes

    mine, theirs = weights(), [torch.nn.Parameter(weight) for weight in weights()]
    updated(update_of("adamw_8bit", SHAPES), mine, range(STEPS))
    matrices = [{"params": [w for w in theirs if w.ndim > 1]}, {"params": theirs[1:2], "weight_decay": 0.0}]
    optimizer = bitsandbytes.optim.AdamW8bit(matrices, lr=RATE, weight_decay=0.01)
    for step in range(STEPS):
        for weight, gradient in zip(theirs, gradients(step), strict=True):
            weight.grad = gradient
        optimizer.step()
    for weight, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(weight, other.detach(), rtol=0, atol=1e-5)


def test_moments_that_were_written_and_read_go_on_to_the_same_bits(tmp_path: Path) -> None:
    update, whole = update_of("adamw_8bit", SHAPES), weights()
    updated(update, whole, range(7))
    slices = [
        TensorSlice(part.name, 0, (0,) * part.value.dim(), part.whole, part.value.clone()) for part in update.state()
    ]
    shards.write(tmp_path, slices, {})
    resumed = UPDATES["adamw_8bit"](update._layout, ALONE, CPU, shards.Reader(tmp_path))
    copy = [weight.clone() for weight in whole]
    updated(update, whole, range(7, STEPS))
    updated(resumed, copy, range(7, STEPS))
    assert all(torch.equal(weight, other) for weight, other in zip(whole, copy, strict=True))
    assert {part.value.dtype for part in slices if part.name.endswith("/matrix")} == {torch.uint8, torch.float32}


def test_an_update_that_is_not_finite_changes_nothing() -> None:
    update, parameters = update_of("adamw_8bit", SHAPES), weights()
    updated(update, parameters, range(3))
    before = [part.value.clone() for part in update.state()]
    old = [weight.clone() for weight in parameters]
    updated(update, parameters, range(3, 5), good=False)
    assert all(map(torch.equal, parameters, old))
    assert all(torch.equal(part.value, value) for part, value in zip(update.state(), before, strict=True))


def test_the_estimate_counts_moments_in_8_bits() -> None:
    """2 bytes a number and 8 a block of 256; while the largest parameter is updated, its moments in fp32."""
    wide = {**LLAMA, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
    memory, other = (
        trace_memory(kind, scratch(**wide), row_meta(16)) for kind in (config(), TrainConfig(engine="native"))
    )
    matrices = 4 * (4 * 128 * 128 + 3 * 128 * 512) + 2 * 64 * 128
    norms = 9 * 128
    assert other.optimizer == 8 * (matrices + norms)
    assert memory.optimizer == 2 * matrices + matrices // 256 * 8 + 8 * norms + 8 * 128 * 512


@pytest.mark.parametrize(
    "fields",
    [
        {"engine": "xla"},
        {"devices": 2, "zero1": True},
        {"devices": 2, "fsdp": True},
        {"devices": 2, "tensor_parallel_size": 2},
        {"dtype": "bfloat16", "stochastic_rounding": True},
    ],
    ids=str,
)
def test_layouts_that_split_parameters_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"optimizer=adamw_8bit .*{[*fields][-1]}"):
        TrainConfig(**{"engine": "native", "optimizer": "adamw_8bit", **fields})
