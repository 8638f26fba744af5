"""The objectives on pairs against TRL's equations, written out in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.preference_losses import PREFERENCES, Answers

ROWS = 64
BETA, WRONG, GAMMA = 0.3, 0.1, 0.7


def made() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    tokens = generator.integers(3, 30, (ROWS, 1, 2))
    return {
        "logps": -tokens * generator.uniform(0.05, 3, tokens.shape), "tokens": tokens,
        "reference": -tokens * generator.uniform(0.05, 3, tokens.shape), "there": np.ones((ROWS, 1), bool),
        "surprise": generator.uniform(0.5, 3, (ROWS, 1)), "marks": generator.choice([-1.0, 1.0], (ROWS, 1)),
        "kl": np.full((ROWS, 1), 0.4),
    }  # fmt: skip


def log_sigmoid(values: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0, -values)


def dpo(found: Any) -> np.ndarray:
    return -log_sigmoid(BETA * ratio(found))


def robust(found: Any) -> np.ndarray:
    margins = BETA * ratio(found)
    return (-(1 - WRONG) * log_sigmoid(margins) + WRONG * log_sigmoid(-margins)) / (1 - 2 * WRONG)


def ipo(found: Any) -> np.ndarray:
    gains = (found["logps"] - found["reference"]) / found["tokens"]
    return (gains[..., 0] - gains[..., 1] - 1 / (2 * BETA)) ** 2


def orpo(found: Any) -> np.ndarray:
    chosen, rejected = np.moveaxis(found["logps"] / found["tokens"], -1, 0)
    log_odds = chosen - rejected - (np.log1p(-np.exp(chosen)) - np.log1p(-np.exp(rejected)))
    return found["surprise"] - BETA * log_sigmoid(log_odds)


def simpo(found: Any) -> np.ndarray:
    means = found["logps"] / found["tokens"]
    logits = means[..., 0] - means[..., 1] - GAMMA / BETA
    return -log_sigmoid(BETA * logits) * (1 - WRONG) - log_sigmoid(-BETA * logits) * WRONG


def kto(found: Any) -> np.ndarray:
    gains = (found["logps"] - found["reference"])[..., 0]
    desired = 1 - 1 / (1 + np.exp(-BETA * (gains - 0.4)))
    undesired = 1 - 1 / (1 + np.exp(-BETA * (0.4 - gains)))
    return np.where(found["marks"] > 0, 1.5 * desired, 0.5 * undesired)


def ratio(found: Any) -> np.ndarray:
    logps, reference = found["logps"], found["reference"]
    return (logps[..., 0] - logps[..., 1]) - (reference[..., 0] - reference[..., 1])


@pytest.mark.parametrize(
    ("objective", "settings", "theirs"),
    [
        ("dpo", {}, dpo),
        ("dpo", {"loss_type": "robust", "label_smoothing": WRONG}, robust),
        ("dpo", {"loss_type": "ipo"}, ipo),
        ("orpo", {}, orpo),
        ("simpo", {"simpo_gamma": GAMMA, "label_smoothing": WRONG}, simpo),
        ("kto", {"desirable_weight": 1.5, "undesirable_weight": 0.5}, kto),
    ],
)
def test_the_loss_is_trl_s(objective: str, settings: dict[str, Any], theirs: Callable[[Any], np.ndarray]) -> None:
    given = made()
    config = TrainConfig(objective=objective, beta=BETA, engine="native", **settings)
    answers = Answers(*(torch.from_numpy(given[name]) for name in Answers._fields))
    np.testing.assert_allclose(PREFERENCES[objective].loss(config, answers)[0].numpy(), theirs(given), rtol=1e-6)
