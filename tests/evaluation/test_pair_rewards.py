"""What a model says of pairs is judged as its objective defines, over the whole split."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trnflow.tasks.evaluation import pair_rewards as module
from trnflow.tasks.evaluation.pair_rewards import pair_rewards
from trnflow.tasks.training import pair_answers
from trnflow.tasks.training.preference_losses import Answers

KTO = {"objective": "kto", "loss_type": "kto", "beta": 0.5, "desirable_weight": 1.0, "undesirable_weight": 2.0}
LOGPS = np.array([[[-2.0, -1.0]], [[-4.0, -3.0]]])
"""Of two rows of one answer each: of the answer, and of another row's."""
REFERENCE = np.array([[[-3.0, -4.0]], [[-3.0, -4.0]]])
MARKS = np.array([[1.0], [-1.0]])


def test_the_losses_of_kto_are_those_of_its_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(built: Any, columns: Any, *given: Any, whole: bool) -> Answers:
        none = torch.zeros(2, 1)
        there = none.bool().logical_not()
        return Answers(*map(torch.tensor, (LOGPS, [[[2, 2]]] * 2, REFERENCE)), there, none, torch.tensor(MARKS), none)

    batch = SimpleNamespace(samples=2, **dict.fromkeys(("input_ids", "targets", "segment_ids", "position_ids"), MARKS))
    batch.reference, batch.marks = REFERENCE, MARKS
    monkeypatch.setattr(pair_answers, "answers", answers)
    monkeypatch.setattr(module, "whole_batches", lambda split, rows: [batch])
    monkeypatch.setattr(module, "fitting", lambda *given: 2)
    monkeypatch.setattr(module, "first_position", lambda model: 0)
    model, split = SimpleNamespace(device="cpu"), SimpleNamespace(surprise_share=0.0)
    found = pair_rewards(model, split, "unpaired_preference", KTO, 2, lambda rows: None)

    # gains over the reference: of the answers 1 and -1, of the mismatched ones 3 and 1, whose mean is the baseline
    desirable, undesirable = (1 / (1 + np.exp(0.5 * gain)) for gain in (1 - 2, 2 - -1))
    np.testing.assert_allclose(found.loss, [desirable, 2 * undesirable])
    assert found.reward.tolist() == [0.5, -0.5] and found.gain.tolist() == [3.0, 1.0]
