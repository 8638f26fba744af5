"""Losses of objectives on pairs against the equations of their papers, written in numpy and float64."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.pair_answers import numbers_of
from trnflow.tasks.training.preference_losses import PREFERENCES, Answers

PAIRS = 6
Equation = Callable[[TrainConfig, Any], Any]
"""(settings, what a model says of pairs: arrays [pairs, 2] or [pairs]) -> [pairs]."""


def sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values))


def surprise(margins: Any) -> Any:
    return -np.log(sigmoid(margins))


def dpo(config: TrainConfig, of: Any) -> Any:
    """Rafailov et al. 2023; with wrong labels Chowdhury et al. 2024."""
    margins, wrong = config.beta * (of.gains[:, 0] - of.gains[:, 1]), config.label_smoothing
    return ((1 - wrong) * surprise(margins) - wrong * surprise(-margins)) / (1 - 2 * wrong)


def ipo(config: TrainConfig, of: Any) -> Any:
    """Azar et al. 2023, of mean log-probabilities."""
    each = of.gains / of.tokens
    return (each[:, 0] - each[:, 1] - 0.5 / config.beta) ** 2


def orpo(config: TrainConfig, of: Any) -> Any:
    """Hong et al. 2024."""
    odds = np.exp(of.means) / (1 - np.exp(of.means))
    return of.surprise + config.beta * surprise(np.log(odds[:, 0] / odds[:, 1]))


def simpo(config: TrainConfig, of: Any) -> Any:
    """Meng et al. 2024; smoothed as conservative DPO."""
    margins, wrong = config.beta * (of.means[:, 0] - of.means[:, 1]) - config.simpo_gamma, config.label_smoothing
    return (1 - wrong) * surprise(margins) + wrong * surprise(-margins)


def reward(config: TrainConfig, of: Any) -> Any:
    """Bradley and Terry 1952; centred as Eisenstein et al. 2023."""
    return surprise(of.logps[:, 0] - of.logps[:, 1]) + config.center_rewards_coefficient * of.logps.sum(1) ** 2


def kto(config: TrainConfig, of: Any) -> Any:
    """Ethayarajh et al. 2024; without the other answers D'Oosterlinck et al. 2024."""
    gains, kl = of.gains[:, 0], of.kl if config.loss_type == "kto" else 0.0
    good = config.desirable_weight * (1 - sigmoid(config.beta * (gains - kl)))
    bad = config.undesirable_weight * (1 - sigmoid(config.beta * (kl - gains)))
    return np.where(of.marks > 0, good, bad)


CASES: dict[str, tuple[Equation, dict[str, Any]]] = {
    "dpo": (dpo, {}),
    "dpo with wrong labels": (dpo, {"loss_type": "robust", "label_smoothing": 0.1}),
    "dpo of means": (ipo, {"loss_type": "ipo"}),
    "orpo": (orpo, {}),
    "simpo": (simpo, {"simpo_gamma": 0.7, "label_smoothing": 0.1}),
    "reward": (reward, {"center_rewards_coefficient": 0.02}),
    "kto": (kto, {"desirable_weight": 1.5, "undesirable_weight": 0.5}),
    "kto alone": (kto, {"loss_type": "apo_zero_unpaired", "undesirable_weight": 2.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_its_equation(case: str) -> None:
    equation, settings = CASES[case]
    beta = {} if case == "reward" else {"beta": 0.3}
    config = TrainConfig(engine="native", objective=case.split()[0], **beta, **settings)
    draw = np.random.default_rng(0)
    logps, reference = -draw.uniform(2, 40, (2, PAIRS, 2))
    given = {
        "logps": logps, "tokens": draw.integers(3, 20, (PAIRS, 2)), "reference": reference, "there": np.ones(PAIRS, bool),
        "surprise": draw.uniform(0.5, 3, PAIRS), "marks": np.array([1.2, -0.8] * (PAIRS // 2)), "kl": np.full(PAIRS, 0.7),
    }  # fmt: skip
    of = SimpleNamespace(**given, gains=logps - reference, means=logps / given["tokens"])
    answers = Answers(**{name: torch.from_numpy(each)[None] for name, each in given.items()})
    loss, _ = PREFERENCES[config.objective].loss(config, answers)
    np.testing.assert_allclose(loss[0].numpy(), equation(config, of), rtol=1e-6)


def test_surprise_is_a_mean_over_the_tokens_of_a_batch_and_the_rest_over_its_pairs() -> None:
    config = TrainConfig(engine="native", objective="orpo")
    pairs, none = torch.tensor([[[-2.0, -9.0], [-4.0, -8.0]]]), torch.zeros(1, 2)
    there, surprise = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[3.0, 5.0]])
    found = Answers(pairs, torch.full((1, 2, 2), 4.0), torch.zeros(1, 2, 2), there, surprise, none, none)
    alone, shared = (numbers_of(config, found, share) for share in (0.0, 0.25))
    assert float(shared[0] - alone[0]) == pytest.approx(0.25 * 8.0)
    torch.testing.assert_close(shared[1:], alone[1:])
