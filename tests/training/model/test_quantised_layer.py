"""A layer in 8 bits by figures of its own, and which layers are quantised: `test_quantised` compares with bitsandbytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.model.quantised import QuantisedLinear, quantised_layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_weight_is_the_nearest_of_255_steps_of_its_row_in_the_dtype_that_trains(dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(96, 24)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.random.default_rng(0).normal(size=(24, 96))))
    weight = linear.weight.detach().to(dtype).double().numpy()
    step = np.abs(weight).max(1, keepdims=True) / 127
    layer = QuantisedLinear(linear, "int8", dtype)
    assert np.array_equal(layer.weight.numpy(), np.rint(weight / step))
    hidden = torch.ones(1, 96, requires_grad=True)
    layer(hidden).sum().backward()
    assert hidden.grad is not None
    expected = (layer.weight.double().numpy() * step).sum(0)
    np.testing.assert_allclose(hidden.grad[0].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_the_output_layer_stays_as_it_is(tmp_path: Path) -> None:
    built = build(scratch(**LLAMA), packed_lm(tmp_path), seed=0, weights=False)
    layers = {name.rpartition(".")[2] for name in quantised_layers(built.model)}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
