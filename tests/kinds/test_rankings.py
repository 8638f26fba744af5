"""Figures of rankings, vectors and marked answers, worked out by hand."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.errors import DataError
from trnflow.tasks.evaluation.scores import values_of
from trnflow.tasks.kinds.embedding import Embedding, cosent_loss
from trnflow.tasks.kinds.reranker import Reranker, number_of_query
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.kinds.unpaired_preference import MarkedRewards


def test_a_relevant_passage_comes_behind_those_of_equal_score() -> None:
    relevance, scores = [0.0, 0.5, 0.0, 1.0, 0.25], [0.9, 0.9, 0.1, 0.2, 0.2]
    expected = np.array([[each, *number_of_query("a" if at < 3 else "b")] for at, each in enumerate(relevance)])
    found = Outputs(expected, np.array(scores)[:, None], np.array(scores)[:, None], np.zeros(5))
    assert values_of("reranker", found)["mrr_at_10"] == 1 / 2  # both are second


def test_a_query_has_48_bits_of_its_digest() -> None:
    high, low = number_of_query("a query")
    assert int(high) << 24 | int(low) == int(hashlib.sha256(b"a query").hexdigest()[:12], 16)
    assert np.array([high, low], np.float32).tolist() == [high, low]


def test_a_relevance_is_a_number_from_0_to_1() -> None:
    config = FormatConfig(task="reranker", text_pair="passage", target="score")
    target = Reranker().target_of(config, [], ())
    assert [target({"score": value}, "row 1") for value in (True, "0.5", 0)] == [[1.0], [0.5], [0.0]]
    for wrong in (2, -0.5):
        with pytest.raises(DataError, match=f"row 3: score is {wrong:g}, no relevance from 0 to 1"):
            target({"score": wrong}, "row 3")


def test_pairs_of_equal_scores_are_not_compared() -> None:
    """The loss is ln(1 + sum of e^(20 (cos i - cos j))) over the pairs in which row i has the lower score."""
    vectors = torch.tensor([[[1.0, 0.0], [c, (1 - c * c) ** 0.5]] for c in (0.5, 0.4, 0.45)])
    loss = cosent_loss(vectors, torch.tensor([1.0, 1.0, 2.0]))
    assert float(loss) == pytest.approx(np.log(1 + np.exp(20 * 0.05) + np.exp(-20 * 0.05)), rel=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_pooled_and_other_programs_are_told_how(pooling: str, normalize: bool) -> None:
    kind = Embedding()
    head = kind.head({"pooling": pooling, "normalize": normalize})
    states = torch.tensor([[[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [9.0, 9.0]]])
    made = kind.logits_of((states,), torch.tensor([[1, 1, 2, 0]]), head)
    first = np.array([3.0, 4.0] if pooling == "cls" else [2.0, 2.0])
    wanted = [*(first / np.hypot(*first)), 0.0, 1.0] if normalize else [*first, 0.0, 2.0]
    np.testing.assert_allclose(made[0].numpy(), wanted, rtol=1e-6)
    files = kind.companions(head, 2, 64)
    modes = {name for name, value in files["1_Pooling/config.json"].items() if value is True}
    assert modes == {"pooling_mode_mean_tokens" if pooling == "mean" else "pooling_mode_cls_token"}
    assert len(files["modules.json"]) == 2 + normalize


def test_rewards_of_marked_answers_count_as_they_are_marked() -> None:
    reward, good, likelihood = [2.0, -1.0, 1.0, -3.0], [1.0, 0.0, 0.0, 0.0], [-1.0, -4.0, -2.0, -3.0]
    found = MarkedRewards(*map(np.array, (reward, good, likelihood, [-3.0, 1.0, -4.0, 0.0], [1.0] * 4)))
    values: Any = values_of("unpaired_preference", found)
    assert (values["reward_accuracy"], values["kl"]) == (3 / 4, 0)
    assert values["reward_margin"] == 3 and values["likelihood_margin"] == 2
    assert values_of("unpaired_preference", found._replace(gain=np.array([3.0, 1.0, -1.0, 1.0])))["kl"] == 1
    assert [found.verdict(at) for at in (0, 2)] == [("desirable", "undesirable"), ("undesirable", "desirable")]
