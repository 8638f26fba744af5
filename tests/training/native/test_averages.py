"""The moving average of the weights is torch's, and giving it to the model and back changes no bit."""

from __future__ import annotations

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

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
