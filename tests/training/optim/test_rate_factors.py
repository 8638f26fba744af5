"""Parameters with a learning rate of their own move as in PyTorch's groups, of every optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.errors import ModelError
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.model.adapters import adapt
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.native.engine import UPDATES
from trnflow.tasks.training.optim.optimizer import scalars
from trnflow.tasks.training.optim.rate_factors import rate_factors
from trnflow.tasks.training.partition_specs import Mesh, Shape
from trnflow.tasks.training.world import ALONE

SHAPES: dict[str, Shape] = {"slow": (64, 96), "common": (64, 96), "bias": (64,)}
RATES = {"slow": 0.1, "bias": 4.0}


def factors(tmp_path: Path, **fields: Any) -> dict[str, float]:
    config = TrainConfig(**fields)
    built = build(scratch(**LLAMA, tie_word_embeddings=False), packed_lm(tmp_path), seed=0, weights=False)
    return rate_factors(config, adapt(config, built))


def test_the_first_part_that_is_named_counts(tmp_path: Path) -> None:
    rates = {"layers.0.mlp": 1e-3, "layers.*": 1e-4, "norm": 2e-2}
    found = factors(tmp_path, learning_rate=1e-2, learning_rate_mapping=rates)
    assert found["model.layers.0.mlp.up_proj.weight"] == pytest.approx(0.1)
    assert found["model.layers.0.self_attn.q_proj.weight"] == pytest.approx(0.01)
    assert found["model.norm.weight"] == 2.0 and "lm_head.weight" not in found


def test_a_part_that_is_not_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"learning_rate_mapping: embed_tokens names no part of what is trained of Llama"
    ):
        factors(tmp_path, method="lora", learning_rate_mapping={"embed_tokens": 1e-3})


def test_a_part_whose_rate_another_decides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"all that layers.0.mlp names has another rate by a part before it"):
        factors(tmp_path, learning_rate_mapping={"layers.*": 1e-4, "layers.0.mlp": 1e-3})


def test_a_part_that_another_gives_the_same_rate_is_harmless(tmp_path: Path) -> None:
    rates = {"layers.*": 1e-4, "layers.0.mlp": 1e-4, "norm": 1e-2}
    found = factors(tmp_path, learning_rate=1e-3, learning_rate_mapping=rates)
    assert all(rate == pytest.approx(0.1) for name, rate in found.items() if ".layers." in name)


def test_groups_of_loraplus_are_those_of_peft(tmp_path: Path) -> None:
    from peft.optimizers import create_loraplus_optimizer

    fields = {"method": "lora", "lora": {"targets": "all-linear", "use_dora": True, "loraplus_lr_ratio": 8.0}}
    mine = factors(tmp_path, **fields)
    config = TrainConfig(**fields)
    built = adapt(config, build(scratch(**LLAMA), packed_lm(tmp_path), seed=0, weights=True))
    optimizer = create_loraplus_optimizer(built.model, torch.optim.AdamW, lr=1.0, loraplus_lr_ratio=8.0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: mine.get(name, 1.0) for name in built.trained()} == {
        name: rates[id(parameter)] for name, parameter in built.trained().items()
    }


@pytest.mark.parametrize(
    ("name", "theirs", "apart"),
    [
        ("adamw", torch.optim.AdamW, 1e-6),
        ("adafactor", torch.optim.Adafactor, 1e-6),
        ("adamw_8bit", torch.optim.AdamW, 2e-3),
    ],
)
def test_an_update_with_rates_is_pytorch_s(name: str, theirs: Any, apart: float) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    config = TrainConfig(
        optimizer=name, engine="native", learning_rate=1e-2, weight_decay=0.0, schedule="constant", max_grad_norm=None
    )
    specs = {key: (None,) * len(shape) for key, shape in SHAPES.items()}
    layout = ShardLayout("toy", Mesh(1, 1), SHAPES, specs, specs, specs, {}, {}, rates=RATES)
    mine = UPDATES[name](layout, ALONE, torch.device("cpu"), None)
    torch.manual_seed(0)
    weights: Sequence[Any] = [torch.randn(shape) for shape in SHAPES.values()]
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    groups = [
        {"params": [parameter], "lr": 1e-2 * RATES.get(key, 1.0)}
        for key, parameter in zip(SHAPES, parameters, strict=True)
    ]
    optimizer = theirs(groups, weight_decay=0.0)
    for step in range(4):
        gradients = [torch.randn(shape) for shape in SHAPES.values()]
        mine.apply(weights, gradients, torch.ones(()), torch.tensor(True), scalars(config, step, 4, 1))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    for weight, parameter in zip(weights, parameters, strict=True):
        torch.testing.assert_close(weight, parameter.detach(), rtol=0, atol=apart)
