"""Dropout by 16 bits an element: the right share, scaled to keep the mean, and repeated where a pass is."""

from __future__ import annotations

import pytest
import torch

from trnflow.tasks.training.model.dropout import LEVELS, dropout_mask, use_fast_dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9, 1 / LEVELS, 1 - 1 / LEVELS, 1.0])
def test_the_share_and_the_mean_are_those_asked_for(probability: float) -> None:
    torch.manual_seed(0)
    found = dropout_mask(torch.empty(1000, 2001), probability)
    lost = min(round(probability * LEVELS), LEVELS - 1) / LEVELS
    assert found.unique().tolist() == pytest.approx([0, 1 / (1 - lost)])
    spread = (lost * (1 - lost) / found.numel()) ** 0.5
    assert (found == 0).float().mean().item() == pytest.approx(lost, abs=5 * spread)
    assert found.double().mean().item() == pytest.approx(1, abs=5 * spread / (1 - lost))


def test_the_four_elements_of_a_draw_are_independent() -> None:
    torch.manual_seed(0)
    shares = torch.corrcoef((dropout_mask(torch.empty(100_000, 4), 0.5) == 0).double().T)
    assert (shares - torch.eye(4)).abs().max() < 5 / 100_000**0.5


def test_a_layer_draws_in_training_alone_and_alike_from_a_seed() -> None:
    layer, hidden = torch.nn.Sequential(torch.nn.Dropout(0.3)), torch.randn(7, 5, dtype=torch.bfloat16)
    use_fast_dropout(layer)
    torch.manual_seed(1)
    one = layer(hidden)
    torch.manual_seed(1)
    assert torch.equal(one, layer(hidden)) and not torch.equal(one, hidden) and one.dtype == torch.bfloat16
    assert layer.eval()(hidden) is hidden
