"""The registry of metrics: one entry each, read by all, and in the key of evaluate_model alone."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trnflow.tasks.errors import CodeError
from trnflow.tasks.evaluation import scores
from trnflow.tasks.evaluation.baselines.measured import _at_words
from trnflow.tasks.evaluation.classification import confused, confusion
from trnflow.tasks.evaluation.columns import ClassPredictions
from trnflow.tasks.evaluation.metrics.mcc import matthews_correlation
from trnflow.tasks.evaluation.paired import Pair, chance
from trnflow.tasks.evaluation.report_outputs import _retrieved
from trnflow.tasks.evaluation.scores import Score, score
from trnflow.tasks.kinds.registry import KINDS
from trnflow.tasks.kinds.targets import Outputs
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


def test_the_tags_of_words_stand_where_a_word_is_judged() -> None:
    expected = np.array([[-100, 0, -100, 2], [1, -100, -100, -100]], np.int32)
    assert _at_words(expected, np.array([5, 6, 7], np.int32)).tolist() == [[-100, 5, -100, 6], [7, -100, -100, -100]]
    assert expected[0, 1] == 0, "the rows stay"


def test_what_is_nearest_to_an_anchor_is_named_by_its_row(tmp_path: Path) -> None:
    texts = [[f"{side} {row}" for row in range(4)] for side in ("asks", "tells")]
    pq.write_table(pa.table({"text": texts[0], "text_pair": texts[1]}), tmp_path / "test.parquet")
    found = _retrieved(tmp_path / "test.parquet", np.array([3, 1, 0]), 1, 2, [(0.5, 0, 1), (0.25, 2, 0)])
    assert found == {
        "row": 2, "asked": "asks 1", "positive": "tells 1", "place": 2,
        "found": [{"cosine": 0.5, "text": "tells 3"}, {"cosine": 0.25, "text": "asks 0"}],
    }  # fmt: skip


def test_matthews_correlation_compares_with_what_is_expected() -> None:
    found: Any = SimpleNamespace(expected=[0, 1, 1, 0], predicted=[1, 0, 0, 1])
    assert matthews_correlation(found) == -1.0


def test_as_many_permutations_are_drawn_as_are_asked_for_though_blocks_do_not_divide_them() -> None:
    sizes: list[int] = []

    def permute(_: np.random.Generator, size: int) -> Any:
        sizes.append(size)
        return np.zeros(size)

    pair = Pair((0.5, 0.5), np.ones(3, bool), permute, block=4)
    assert chance(pair, 1.0, 10) == (1.0, 1.0) and sizes == [4, 4, 2]


def test_a_metric_that_the_rows_do_not_have_is_left_out() -> None:
    """Pairs without scores have no correlation."""
    vectors, nothing = np.eye(4, dtype=np.float32), np.zeros((4, 1))
    pairs = Outputs(
        np.arange(16, dtype=np.float32).reshape(4, 4), np.concatenate([vectors] * 2, 1), nothing, nothing[:, 0]
    )
    found = scores.values_of("embedding", pairs)
    assert found["mrr_at_10"] == 1 and not {"spearman", "pearson"} & {*found}


def test_pairs_of_classes_are_confused_where_a_prediction_is_wrong() -> None:
    expected, predicted = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 1, 0])
    found = ClassPredictions(expected, predicted, np.eye(3)[predicted], np.zeros(6))
    given: Any = SimpleNamespace(named=lambda row: {"row": row + 1})
    rows = np.array([5, 4, 3, 2, 1, 0])
    assert confused(found, confusion(found, 3), ["a", "b", "c"], rows, given) == [
        {"label": "a", "predicted": "b", "count": 2, "share": 2 / 3, "rows": [{"row": 4}, {"row": 5}]},
        {"label": "c", "predicted": "a", "count": 1, "share": 1.0, "rows": [{"row": 1}]},
    ]


def test_less_is_better_of_losses_and_of_what_nobody_knows() -> None:
    less = {
        name: scores.is_less_better(name) for name in ("eval_loss", "perplexity", "mine", "eval_accuracy", "span_f1")
    }
    assert less == {"eval_loss": True, "perplexity": True, "mine": True, "eval_accuracy": False, "span_f1": False}
