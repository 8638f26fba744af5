"""The moving average of the weights is torch's, and giving it to the model and back changes no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.training.run_stage import run_in_turn
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.native.averages import Averages
from trnflow.tasks.training.partition_specs import Mesh, Spec
from trnflow.tasks.training.shared_types import AVERAGE
from trnflow.tasks.training.world import ALONE


def test_averages_are_those_of_averaged_model() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(7, 5)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    specs: dict[str, Spec] = {name: (None,) * len(shape) for name, shape in shapes.items()}
    layout = ShardLayout("toy", Mesh(1, 1), shapes, specs, specs, specs, {}, {})
    weights = [parameter.detach() for parameter in model.parameters()]
    mine = Averages(0.9, weights, layout, ALONE, None)
    for step in range(1, 6):
        for weight in weights:
            weight.add_(torch.randn_like(weight))
        before = [part.value.clone() for part in mine.state()]
        mine.update(torch.tensor(False), step)
        assert all(torch.equal(part.value, old) for part, old in zip(mine.state(), before, strict=True))
        mine.update(torch.tensor(True), step)
        theirs.update_parameters(model)
    expected = dict(theirs.module.named_parameters())
    for part in mine.state():
        torch.testing.assert_close(part.value, expected[part.name.removeprefix(AVERAGE)].detach(), rtol=0, atol=1e-7)
    kept = [weight.clone() for weight in weights]
    mine.swap()
    torch.testing.assert_close(weights[0], expected["weight"].detach(), rtol=0, atol=1e-7)
    mine.swap()
    assert all(torch.equal(weight, old) for weight, old in zip(weights, kept, strict=True))


@pytest.mark.slow
def test_ranks_average_as_one_process(tmp_path: Path) -> None:
    """With evaluations between the updates, which gather averages where FSDP splits the weights."""
    packed, model = packed_lm(tmp_path / "packed", rows=24), scratch(**LLAMA)
    fields: dict[str, Any] = {
        "engine": "native", "global_batch": 8, "epochs": 2, "learning_rate": 1e-2, "log_every": 1, "eval_every": 1,
        "ema_decay": 0.5,
    }  # fmt: skip
    layouts: list[dict[str, Any]] = [{"zero1": True, "micro_batch": 2}, {"fsdp": True}, {}]
    (plain,) = run_in_turn([TrainConfig(**fields)], tmp_path / "plain", model=model, packed=packed)
    configs = [TrainConfig(**fields, devices=2, **layout) for layout in layouts]
    for found, layout in zip(
        run_in_turn(configs, tmp_path / "ranks", model=model, packed=packed), layouts, strict=True
    ):
        for name in ("loss", "eval_loss"):
            assert len(found.curve(name)) >= 6
            assert found.curve(name) == pytest.approx(plain.curve(name), abs=1e-5), (layout, name)
