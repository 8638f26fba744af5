"""Metrics of tasks with float targets are those of scikit-learn and scipy; their intervals and comparisons are sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trnflow.tasks.evaluation.scores import intervals_of, values_of
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.promotion.compare import compare_scores
from trnflow.tasks.promotion.settings import PromoteConfig


def labels(rows: int = 500, noise: float = 0.6, seed: int = 0) -> Outputs:
    random = np.random.default_rng(seed)
    expected = (random.random((rows, 5)) < [0.5, 0.3, 0.2, 0.1, 0.0]).astype(np.float32)
    values = np.clip(expected * 0.6 + random.normal(0.2, noise / 2, expected.shape), 0.001, 0.999).astype(np.float32)
    return Outputs(expected, values, (values >= 0.4).astype(np.float32), random.random(rows))


def numbers(rows: int = 500, noise: float = 1.0, seed: int = 0) -> Outputs:
    random = np.random.default_rng(seed)
    expected = random.integers(0, 20, (rows, 2)).astype(np.float32) / 4
    values = (expected + random.normal(0, noise, expected.shape)).astype(np.float32)
    return Outputs(expected, values, values, ((values - expected) ** 2).mean(1).astype(np.float64))


def test_f1_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

    found = labels()
    values = values_of("multi_label", found)
    for name, decided in (("f1_{}", found.decided), ("f1_{}_at_half", found.values >= 0.5)):
        for average in ("micro", "macro"):
            theirs = f1_score(found.expected, decided, average=average, zero_division=0)
            assert values[name.format(average)] == pytest.approx(theirs, abs=1e-15)
    assert values["accuracy"] == accuracy_score(found.expected, found.decided)
    table = kind_of("multi_label").table(found, list("abcde"))
    theirs = precision_recall_fscore_support(found.expected, found.decided, zero_division=0)
    for name, column in zip(("precision", "recall", "f1", "support"), theirs, strict=True):
        assert [row[name] for row in table] == pytest.approx(column.tolist(), abs=1e-15)


def test_errors_and_correlations_are_those_of_scipy() -> None:
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import mean_absolute_error, root_mean_squared_error

    found, kind = numbers(), kind_of("regression")
    rows = kind.table(found, ["joy", "anger"])
    for at, row in enumerate(rows):
        true, value = found.expected[:, at].astype(float), found.values[:, at].astype(float)
        theirs = {
            "mae": mean_absolute_error(true, value), "rmse": root_mean_squared_error(true, value),
            "pearson": pearsonr(true, value).statistic, "spearman": spearmanr(true, value).statistic,
        }  # fmt: skip
        assert {name: row[name] for name in theirs} == pytest.approx(theirs, abs=1e-12)
    whole = values_of("regression", found)
    assert whole["mae"] == pytest.approx(np.mean([row["mae"] for row in rows]))
    assert whole["rmse"] == pytest.approx(np.sqrt(np.mean([row["rmse"] ** 2 for row in rows])))
    assert whole["pearson"] == pytest.approx(np.mean([row["pearson"] for row in rows]))
    constant = found._replace(values=np.ones_like(found.values))
    assert values_of("regression", constant)["pearson"] == 0


@pytest.mark.parametrize(("task", "found"), [("multi_label", labels()), ("regression", numbers())])
def test_each_metric_lies_in_its_interval(task: str, found: Outputs) -> None:
    values, intervals = values_of(task, found), intervals_of(task, found)
    assert {*values} <= {*intervals}
    for name, value in values.items():
        assert intervals[name][0] < value < intervals[name][1], name


def test_the_threshold_has_the_best_micro_f1() -> None:
    from sklearn.metrics import f1_score

    found, kind = labels(), kind_of("multi_label")
    chosen = kind.decide(found)["threshold"]
    scores = {at / 100: f1_score(found.expected, found.values >= at / 100, average="micro") for at in range(1, 100)}
    assert scores[chosen] == max(scores.values())
    assert kind.decided(np.array([chosen, chosen - 0.01]), {"threshold": chosen}).tolist() == [1, 0]


def test_of_thresholds_as_good_the_nearest_to_a_half_is_taken() -> None:
    values = np.array([[0.1, 0.9], [0.8, 0.2]])
    found = Outputs((values > 0.5).astype(float), values, values, np.zeros(2))
    assert kind_of("multi_label").decide(found) == {"threshold": 0.5}


def test_answers_without_a_reference_are_judged_by_their_mean_log_probabilities() -> None:
    """As DPO and KTO judge with a beta of 1 and a reference that finds all answers alike."""
    means, marks = -np.random.default_rng(0).uniform(0.1, 6, 12), np.array([1, -1, 1, 1, -1, -1])
    own, others = means.reshape(6, 2).T
    pairs = kind_of("preference").judged(means, None)
    assert pairs.chosen.tolist() == own.tolist() and pairs.rejected.tolist() == others.tolist()
    np.testing.assert_allclose(pairs.loss, -np.log(1 / (1 + np.exp(others - own))))
    assert values_of("preference", pairs)["likelihood_accuracy"] == np.mean(own > others)
    marked = kind_of("unpaired_preference").judged(means, marks)  # every second text is another row's answer
    np.testing.assert_allclose(marked.loss, -np.log(1 / (1 + np.exp(-own * marks))))
    margin = own[marks > 0].mean() - own[marks < 0].mean()
    assert values_of("unpaired_preference", marked)["likelihood_margin"] == pytest.approx(margin)


@pytest.mark.parametrize(("task", "make"), [("multi_label", labels), ("regression", numbers)])
def test_a_better_model_wins_and_an_equal_one_does_not(task: str, make: Callable[..., Outputs], tmp_path: Path) -> None:
    for name, found in (("old", make(noise=1.5)), ("new", make(noise=0.3))):
        columns = {field: pa.array(list(column)) for field, column in found._asdict().items()}
        rows = pa.array(range(500), pa.int64())
        pq.write_table(pa.table({"row": rows, "frozen_row": rows, **columns}), tmp_path / name)
    for metric in [entry.name for entry in kind_of(task).metrics if entry.may_promote and entry.name != "loss"]:
        config = PromoteConfig(metric=metric)
        judged = compare_scores(tmp_path / "old", tmp_path / "new", task, config, 0.01)
        assert judged.is_better and judged.low < judged.difference < judged.high
        assert not compare_scores(tmp_path / "old", tmp_path / "old", task, config, 0.01).is_better
