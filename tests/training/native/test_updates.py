"""What an update does to weights in bf16: small ones are not lost, and one that is refused changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.layout.slices import ShardLayout, piece
from trnflow.tasks.training.native.engine import UPDATES
from trnflow.tasks.training.native.updates import Adafactor, FusedAdamW
from trnflow.tasks.training.optim.optimizer import scalars
from trnflow.tasks.training.optim.rounding import RandomBits
from trnflow.tasks.training.partition_specs import Mesh, Shape, Spec
from trnflow.tasks.training.world import ALONE, World

CPU = torch.device("cpu")
RATE, STEPS = 1e-3, 150


Update = FusedAdamW | Adafactor


def update_of(optimizer: str, shapes: dict[str, Shape]) -> Update:
    specs = {name: (None,) * len(shape) for name, shape in shapes.items()}
    return UPDATES[optimizer](ShardLayout("toy", Mesh(1, 1), shapes, specs, specs, specs, {}, {}), ALONE, CPU, None)


def curve(stored: torch.Tensor, after: Callable[[Update, torch.Tensor, int], None]) -> list[float]:
    """Losses of a linear regression whose weights begin between 1 and 2, where bf16's last bit is 1/128, and end 0.1 above. A
    step of AdamW's is about the learning rate, a quarter of half that bit. after: the update itself."""
    rows = torch.randn(256, 32, generator=torch.Generator().manual_seed(5))
    wanted = rows @ (stored.float() + 0.1)
    update, found = update_of("adamw", {"weight": (32,)}), []
    for step in range(STEPS):
        error = rows @ stored.to(torch.bfloat16).float() - wanted
        found.append(float((error * error).mean()))
        update.gradient = 2 * rows.T @ error / len(rows)  # type: ignore[attr-defined]
        after(update, stored, step)
    return found


def apply(update: Update, weight: torch.Tensor, step: int, draws: RandomBits | None) -> None:
    config = TrainConfig(learning_rate=RATE, schedule="constant", max_grad_norm=None)
    gradient, one = update.gradient, torch.ones(())  # type: ignore[attr-defined]
    update.apply([weight], [gradient], one, torch.tensor(True), scalars(config, step, STEPS, 1), draws)


def test_what_rounding_to_the_nearest_forgets_is_not_lost() -> None:
    begin = (1.2 + 0.6 * torch.rand(32, generator=torch.Generator().manual_seed(6))).to(torch.bfloat16)

    def nearest(update: Update, weight: torch.Tensor, step: int) -> None:
        wide = weight.float()
        apply(update, wide, step, None)
        weight.copy_(wide)

    def stochastic(update: Update, weight: torch.Tensor, step: int) -> None:
        apply(update, weight, step, RandomBits(step, ALONE, CPU))

    stuck = begin.clone()
    assert len(set(curve(stuck, nearest))) == 1 and torch.equal(stuck, begin)
    masters = curve(begin.float(), lambda update, weight, step: apply(update, weight, step, None))
    rounded = curve(begin.clone(), stochastic)
    assert masters[-1] < 0.01 * masters[0]
    # as the masters' at every step, to an eighth of what there is to lose: these move a bit at a time, all at once
    assert rounded == pytest.approx(masters, abs=masters[0] / 8)
    assert rounded[-1] < 0.02 * masters[0]


SHAPES: dict[str, Shape] = {
    "scalar": (),
    "norm": (7,),
    "matrix": (5, 3),
    "cube": (2, 5, 3),
    "rows": (3, KINDS["cpu"].chunk // 2),
}


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_an_update_that_is_not_finite_changes_no_bit(optimizer: str) -> None:
    random = torch.Generator().manual_seed(7)
    shapes = {name: shape for name, shape in SHAPES.items() if shape or optimizer == "adamw"}
    patterns = [torch.randint(-(1 << 15), 1 << 15, shape, generator=random) for shape in shapes.values()]
    weights = [pattern.to(torch.int16).view(torch.bfloat16) for pattern in patterns]  # of every sort, denormals too
    weights = [weight.where(weight.isfinite(), torch.tensor(-0.0, dtype=torch.bfloat16)) for weight in weights]
    update, before = update_of(optimizer, shapes), [weight.clone() for weight in weights]
    gradients = [torch.full(shape, float("nan")) for shape in shapes.values()]
    at = scalars(TrainConfig(optimizer=optimizer), 1, 2, 1)  # type: ignore[arg-type]
    update.apply(weights, gradients, torch.ones(()), torch.tensor(False), at, RandomBits(1, ALONE, CPU))
    for weight, old in zip(weights, before, strict=True):
        assert torch.equal(weight.view(torch.int16), old.view(torch.int16))
    assert all(not kept.value.any() for kept in update.state())


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_a_rounded_weight_lies_beside_the_one_in_fp32(optimizer: str) -> None:
    """In one chunk or several, whatever the shape; and the moments, which stay fp32, are the same."""
    random = torch.Generator().manual_seed(8)
    shapes = {name: shape for name, shape in SHAPES.items() if shape}
    weights = [torch.randn(shape, generator=random).to(torch.bfloat16) for shape in shapes.values()]
    wide = [weight.float() for weight in weights]
    gradients = [torch.randn(shape, generator=random) for shape in shapes.values()]
    config = TrainConfig(optimizer=optimizer, learning_rate=0.1)  # type: ignore[arg-type]
    one, other = update_of(optimizer, shapes), update_of(optimizer, shapes)
    arguments = (gradients, torch.ones(()), torch.tensor(True), scalars(config, 0, 2, 1))
    one.apply(weights, *arguments, RandomBits(1, ALONE, CPU))
    other.apply(wide, *arguments)
    for weight, value in zip(weights, wide, strict=True):
        assert ((weight.float() - value).abs() <= value.abs() / 128).all()
    for mine, theirs in zip(one.state(), other.state(), strict=True):
        assert torch.allclose(mine.value, theirs.value, rtol=1e-6, atol=0)


@pytest.mark.parametrize("spec", [(None, None), ("data", None), (None, "model"), ("data", "model")], ids=str)
def test_what_ranks_add_up_for_adafactor_is_the_whole_once(spec: Spec) -> None:
    mesh, whole = Mesh(2, 2), torch.rand(4, 6)
    specs, shapes = {"matrix": spec}, {"matrix": (4, 6)}
    total = 0.0
    for rank in range(4):
        world = World(rank, mesh)
        (state,) = Adafactor(ShardLayout("toy", mesh, shapes, specs, specs, specs, {}, {}), world, CPU, None)._all
        total += float(piece(whole, spec, world).sum()) * state.share
    assert total == pytest.approx(float(whole.sum()))
