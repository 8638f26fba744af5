"""The registry of metrics: one entry each, read by all, and in the key of evaluate_model alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trnflow.flows.recipes.recipe import load
from trnflow.tasks.errors import CodeError, ConfigError
from trnflow.tasks.evaluation import scores
from trnflow.tasks.evaluation.columns import ClassPredictions
from trnflow.tasks.evaluation.metrics.ece import expected_calibration_error
from trnflow.tasks.evaluation.scores import Matrices, Score, score
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.kinds.registry import KINDS
from trnflow.tasks.promotion import compare
from trnflow.tasks.promotion.settings import PromoteConfig

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> list[Score]:
    entries = list(scores.SCORES)
    monkeypatch.setattr(scores, "SCORES", entries)
    return entries


def test_names_stand_in_one_module() -> None:
    """Names that are also words, and those that train or score_rows report by themselves, are left out."""
    names = {entry.name for entry in scores.SCORES} - {"accuracy", "loss", "bits_per_byte"}
    literal = re.compile(rf"""["'](eval_)?({"|".join(sorted(names))})["']""")
    files = [file for room in ("flows", "tasks") for file in (PROJECT / room).rglob("*.py")]
    found = {str(file.relative_to(PROJECT)) for file in files if literal.search(file.read_text())}
    of_tasks = {f"tasks/kinds/{kind.name}.py" for kind in KINDS.values() if kind.metrics}
    assert found == {"tasks/evaluation/scores.py", *of_tasks}


def test_a_second_entry_is_refused_with_both_places(registry: list[Score]) -> None:
    with pytest.raises(CodeError) as error:
        score("f1_macro", "classification")(lambda found: 0.0)
    first = next(entry for entry in registry if (entry.name, entry.task) == ("f1_macro", "classification")).place
    assert re.fullmatch(r".*evaluation/scores\.py:\d+", first)
    assert f"the metric f1_macro of classification is entered twice: {first} and {__file__}:" in error.value.message
    with pytest.raises(CodeError, match=r"default of promote\.metric of causal_lm is entered twice"):
        score("other", "causal_lm", is_default=True)(lambda rows: 0.0)
    assert len(registry) == len(scores.SCORES)


def test_the_calibration_error_has_15_bins_of_equal_width() -> None:
    """As of Guo et al. 2017: the gap of a bin is the sum over its rows of right - confidence."""
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.5, 1, 400)
    right = generator.uniform(size=400) < 0.75
    probabilities = np.stack([1 - confidence, confidence], axis=1)
    found = ClassPredictions(right.astype(np.int64), np.ones(400, np.int64), probabilities, np.zeros(400))

    def by_hand(bins: int) -> float:
        return float(np.abs(np.histogram(confidence, bins, (0, 1), weights=right - confidence)[0]).sum() / 400)

    assert expected_calibration_error(found) == pytest.approx(by_hand(15), abs=1e-9)
    assert min(abs(by_hand(15) - by_hand(other)) for other in (10, 14, 16, 20)) > 1e-4, "bins count"


def test_which_end_is_good() -> None:
    more = [name for name in scores.NAMES if not scores.is_less_better(name)]
    of_targets = ["f1_micro", "span_f1", "span_precision", "span_recall"]
    at_half = ["f1_micro_at_half", "f1_macro_at_half"]
    of_classes = ["accuracy", "f1_weighted", "f1_macro"]
    of_queries = ["ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10", "pearson", "spearman"]
    of_pairs = ["reward_accuracy", "reward_margin", "likelihood_accuracy"]
    of_rewards = ["reward_chosen", "reward_rejected"]
    of_texts = ["exact_match", "token_f1", "json_valid", "rougeL"]
    main = [*of_targets, *of_queries, *of_pairs, *of_classes]
    assert more == [*main, *at_half, "likelihood_margin", *of_rewards, *of_texts, "eval_accuracy"]
    assert scores.is_less_better("tokens_per_second"), "no metric: a sweep takes the lowest"


def test_the_default_of_each_task_is_first() -> None:
    tasks = (
        "classification",
        "causal_lm",
        "multi_label",
        "regression",
        "token_classification",
        "reranker",
        "preference",
        "reward",
        "unpaired_preference",
    )
    defaults = ["f1_weighted", "bits_per_byte", "f1_micro", "rmse", "span_f1", "ndcg_at_10", "likelihood_accuracy"]
    defaults += ["reward_accuracy", "likelihood_margin"]
    assert [scores.promoting(task)[0].name for task in tasks] == defaults
    with pytest.raises(ConfigError, match="promote.metric is perplexity, which is none of .*f1_macro"):
        load("demo", ["promote.metric=perplexity"])


@pytest.mark.parametrize("stage", ["train", "consolidate", "promotion.score_rows", "precompile"])
def test_the_registry_is_in_the_key_of_evaluate_model_alone(stage: str, tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo")
    assert "trnflow.tasks.evaluation.scores" in closure("trnflow.tasks.evaluate_model", memo)[0]
    assert "trnflow.tasks.evaluation.scores" not in closure(f"trnflow.tasks.{stage}", memo)[0]


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "f1_weighted"])
def test_matrices_give_what_rows_give(name: str) -> None:
    draw = np.random.default_rng(3)
    entry = next(entry for entry in scores.SCORES if (entry.name, entry.task) == (name, "classification"))
    assert entry.of_matrices is not None
    expected, predicted = draw.integers(0, 4, (2, 30))
    cells = np.bincount(expected * 5 + predicted, minlength=25).reshape(1, 5, 5)  # one class has no row
    rows = ClassPredictions(expected, predicted, np.empty((30, 0), np.float32), np.zeros(30))
    assert entry(rows) == pytest.approx(entry.of_matrices(Matrices(cells))[0], abs=1e-12)


def predictions(rows: int = 400, classes: int = 3, seed: int = 0) -> ClassPredictions:
    draw = np.random.default_rng(seed)
    probabilities = draw.dirichlet(np.full(classes, 0.5), rows).astype(np.float32)
    return ClassPredictions(draw.integers(0, classes, rows), probabilities.argmax(1), probabilities, np.zeros(rows))


def test_the_calibration_error_is_that_of_fifteen_bins() -> None:
    """As Guo et al. 2017, with the bins of scikit-learn."""
    from sklearn.calibration import calibration_curve

    found = predictions()
    sure, right = found.probabilities.max(1), found.expected == found.predicted
    accuracy, confidence = calibration_curve(right, sure, n_bins=15)
    rows = np.histogram(sure, 15, (0, 1))[0]
    gaps = abs(accuracy - confidence) * rows[rows > 0]
    assert scores.values_of("classification", found)["ece"] == pytest.approx(gaps.sum() / 400, abs=1e-6)


def test_the_area_is_the_mean_over_classes_that_have_rows_and_lack_some() -> None:
    from sklearn.metrics import roc_auc_score

    found = predictions(classes=4)
    kept = found._replace(expected=found.expected % 3)  # the last class has no row
    areas = [roc_auc_score(kept.expected == at, kept.probabilities[:, at]) for at in range(3)]
    assert scores.values_of("classification", kept)["auc"] == pytest.approx(np.mean(areas), abs=1e-6)
    assert "auc" not in scores.values_of("classification", found._replace(expected=np.zeros_like(found.expected)))


def test_models_are_compared_by_a_metric_that_is_only_a_function(tmp_path: Path, registry: list[Score]) -> None:
    draw, truth = np.random.default_rng(0), np.array(["anger", "joy", "sad"] * 40)
    paths = []
    for share in (0.6, 0.8):
        predicted = np.where(draw.random(120) < share, truth, "joy")
        columns: dict[str, Any] = {
            "frozen_row": range(120),
            "label": truth,
            "predicted": predicted,
            "loss": np.ones(120),
        }
        paths.append(tmp_path / str(share))
        pq.write_table(pa.table(columns), paths[-1])

    @score("hit_rate", "classification", may_promote=True)
    def hit_rate(found: ClassPredictions) -> float:
        return float((found.expected == found.predicted).mean())

    config = PromoteConfig(resamples=200)
    by_rows, by_matrices = (
        compare.compare_scores(*paths, "classification", config.model_copy(update={"metric": name}), 0.025)
        for name in ("hit_rate", "accuracy")
    )
    assert by_rows.metric == "hit_rate" and by_rows[1:4] == pytest.approx(by_matrices[1:4], abs=1e-12)
    assert by_rows[4:6] == pytest.approx(by_matrices[4:6], abs=0.04)  # an interval by resamples, and the exact one
    assert by_rows[6:9] == by_matrices[6:9]
