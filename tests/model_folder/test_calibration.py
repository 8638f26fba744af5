"""The temperature that validation rows choose, and the layer that it is divided out of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnflow.tasks.model_folder.calibration import Divided, output_layer, temperature_of


def answers(logits: np.ndarray, seed: int = 0) -> np.ndarray:
    """Draw the classes of which the logits say the truth."""
    shares = torch.from_numpy(logits).softmax(-1)
    return torch.multinomial(shares, 1, generator=torch.Generator().manual_seed(seed))[:, 0].numpy()


@pytest.mark.parametrize("times", [0.4, 1.0, 2.5])
def test_logits_that_are_a_multiple_of_the_true_ones_are_divided_by_it(times: float) -> None:
    true = np.random.default_rng(0).normal(0, 2, (5000, 4)).astype(np.float32)
    assert temperature_of(true * np.float32(times), answers(true)) == pytest.approx(times, rel=0.05)


def test_the_loss_of_rows_that_chose_is_least() -> None:
    logits = np.random.default_rng(1).normal(0, 5, (300, 3)).astype(np.float32)
    expected = answers(logits / 3)

    def loss(by: float) -> float:
        return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits) / by, torch.from_numpy(expected)))

    best = temperature_of(logits, expected)
    assert loss(best) < min(loss(1.0), loss(best * 1.2), loss(best / 1.2))


def test_few_rows_that_are_all_right_do_not_ask_for_a_temperature_of_nothing() -> None:
    logits = np.tile(np.array([[3.0, 0.0, 0.0]], np.float32), (20, 1))
    by = temperature_of(logits, np.zeros(20, np.int64))
    assert np.exp(3 / by) / (np.exp(3 / by) + 2) == pytest.approx(21 / 22, abs=1e-3)


def test_few_rows_that_are_all_wrong_have_a_limit() -> None:
    assert temperature_of(np.array([[9e4, 0.0]] * 20, np.float32), np.ones(20, np.int64)) == 10


@given(st.integers(0, 1000), st.integers(2, 5), st.floats(0.1, 30))
def test_what_is_added_to_a_rows_logits_changes_nothing(seed: int, classes: int, spread: float) -> None:
    random = np.random.default_rng(seed)
    logits = (random.normal(0, spread, (30, classes)) * 64).round().astype(np.float32) / 64  # sums stay exact
    expected = random.integers(0, classes, 30)
    added = random.integers(-50, 50, (30, 1)).astype(np.float32)
    assert temperature_of(logits + added, expected) == temperature_of(logits, expected)


class Model(torch.nn.Module):
    """Three outputs by a last layer, and perhaps what is no multiple of them."""

    def __init__(self, after: Any = None) -> None:
        super().__init__()
        self.config, self.after = SimpleNamespace(num_labels=3), after
        self.inner, self.head = torch.nn.Linear(2, 3), torch.nn.Linear(3, 3)

    def forward(self, input_ids: torch.Tensor) -> Any:
        logits = self.head(self.inner(input_ids.float()))
        return SimpleNamespace(logits=logits if self.after is None else self.after(logits))


def test_the_last_layer_is_found_and_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = Model()
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert output_layer(model) == ["head.weight", "head.bias"]
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


@pytest.mark.parametrize(
    "after", [lambda logits: (5 * logits).tanh(), lambda logits: logits + 1, lambda logits: logits * torch.nan]
)
def test_no_layer_is_found_where_logits_are_no_multiple_of_it(after: Any) -> None:
    torch.manual_seed(0)
    assert output_layer(Model(after)) == []


def test_no_layer_is_found_without_one_of_so_many_outputs() -> None:
    model = Model()
    model.config.num_labels = 4
    assert output_layer(model) == []


def test_only_what_is_named_is_divided() -> None:
    held = {"a": torch.tensor([3.0], dtype=torch.bfloat16), "b": torch.tensor([3.0])}
    weights = SimpleNamespace(names=["a", "b"], shape=lambda name: held[name].shape, tensor=held.__getitem__)
    divided = Divided(weights, ["a"], 1.7)
    assert torch.equal(divided.tensor("a"), torch.tensor([3.0]) / 1.7) and torch.equal(divided.tensor("b"), held["b"])
    assert divided.names == ["a", "b"] and divided.shape("a") == (1,)
