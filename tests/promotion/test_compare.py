"""The permutation test and the sign test against other programs' figures, and how often chance wins."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation import scores
from trnflow.tasks.promotion.compare import Comparison, score_of, sign_test, smallest_gain
from trnflow.tasks.promotion.compare import compare_scores as compare_at
from trnflow.tasks.promotion.permutations import Pair, least_rows, permutation_interval
from trnflow.tasks.promotion.settings import PromoteConfig

LABELS = ["anger", "joy", "sad"]
ALPHA = 0.025  # one tail of an interval of 95 %


def compare_scores(first: Path, second: Path, task: str, config: PromoteConfig, alpha: float = ALPHA) -> Comparison:
    return compare_at(first, second, task, config, alpha)


def classes(path: Path, predicted: NDArray[Any], truth: NDArray[Any]) -> Path:
    columns = {"frozen_row": range(len(truth)), "label": truth.tolist(), "predicted": predicted.tolist()}
    pq.write_table(pa.table({**columns, "loss": (predicted != truth) + 0.5}), path)
    return path


def likelihoods(path: Path, nll: NDArray[Any], size: NDArray[Any], rows: NDArray[Any] | None = None) -> Path:
    """rows: the frozen row of each example; None: each has its own."""
    rows = np.arange(len(nll)) if rows is None else rows
    pq.write_table(pa.table({"frozen_row": rows, "nll": nll, "tokens": size // 4, "bytes": size}), path)
    return path


def answers(draw: np.random.Generator, truth: NDArray[Any], accuracy: float) -> NDArray[Any]:
    """Right with this probability, independently for each row; else any label."""
    return np.where(draw.random(len(truth)) < accuracy, truth, draw.choice(LABELS, len(truth)))


@pytest.fixture
def truth() -> NDArray[Any]:
    return np.random.default_rng(0).choice(LABELS, 600, p=[0.6, 0.3, 0.1])


def test_values_are_those_of_scikit_learn(tmp_path: Path, truth: NDArray[Any]) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    draw = np.random.default_rng(1)
    both = [answers(draw, truth, 0.6), answers(draw, truth, 0.9)]
    paths = [classes(tmp_path / str(n), one, truth) for n, one in enumerate(both)]
    for metric in ("accuracy", "f1_macro", "f1_weighted"):
        found = compare_scores(*paths, "classification", PromoteConfig(metric=metric, resamples=100))
        wanted = [
            accuracy_score(truth, one) if metric == "accuracy" else f1_score(truth, one, average=metric[3:])
            for one in both
        ]
        assert (found.champion, found.challenger) == pytest.approx(wanted, abs=1e-12)
        assert found.difference == pytest.approx(wanted[1] - wanted[0], abs=1e-12)


def test_the_decision_is_that_of_scipys_permutation_test(tmp_path: Path, truth: NDArray[Any]) -> None:
    """scipy swaps each row's predictions of two models, and counts the models as given among the permutations."""
    from scipy.stats import permutation_test

    draw, rows = np.random.default_rng(1), truth[:40]

    def f1(predicted: NDArray[Any]) -> NDArray[Any]:
        right, guessed = (predicted[..., None] == np.array(LABELS)), rows[:, None] == np.array(LABELS)
        return np.asarray((2 * (right & guessed).sum(-2) / (right.sum(-2) + guessed.sum(-2))).mean(-1))

    def difference(first: NDArray[Any], second: NDArray[Any], axis: int) -> NDArray[Any]:
        return f1(second) - f1(first)

    decided = []
    for strength in (0.8, 0.85, 0.9):
        both = [answers(draw, rows, accuracy) for accuracy in (0.6, strength)]
        paths = [classes(tmp_path / str(n), one, rows) for n, one in enumerate(both)]
        theirs = permutation_test(
            both,
            difference,
            permutation_type="samples",
            alternative="greater",
            n_resamples=9999,
            rng=3,
            vectorized=True,
        )
        p, error = float(theirs.pvalue), 5 * math.sqrt(float(theirs.pvalue) / 2000)
        for alpha in (p - error, p + error):
            if 0.0005 < alpha < 0.5:
                config = PromoteConfig(metric="f1_macro")
                found = compare_scores(*paths, "classification", config, alpha)
                assert found.is_better == (alpha > p) and found.difference == pytest.approx(float(theirs.statistic))
                decided.append(found.is_better)
                reach = float(np.quantile(theirs.null_distribution, 1 - alpha))
                assert found.high - found.difference == pytest.approx(reach, abs=0.02)
    assert True in decided and False in decided


@pytest.mark.parametrize("metric", ["accuracy", "f1_weighted", "loss"])
@pytest.mark.parametrize(("rows", "is_better"), [(6, False), (7, True)])
def test_few_rows_are_not_enough(tmp_path: Path, truth: NDArray[Any], rows: int, is_better: bool, metric: str) -> None:
    wrong = np.full(rows, "none")
    paths = classes(tmp_path / "a", wrong, truth[:rows]), classes(tmp_path / "b", truth[:rows], truth[:rows])
    config = PromoteConfig(metric=metric)
    found = compare_scores(*paths, "classification", config, config.share(1))
    assert (found.differing, found.is_better, found.can_win) == (rows, is_better, is_better)
    assert least_rows(config.share(1)) == 7 and least_rows(config.share(365)) == 14


def test_rows_that_both_judge_wrong_say_nothing_about_accuracy(tmp_path: Path, truth: NDArray[Any]) -> None:
    """Otherwise a challenger that wins all 8 rows could not be told from one that wins 28 of 48."""
    first, second = truth.copy(), truth.copy()
    first[:48] = second[:48] = "none"
    first[:40], second[40:48] = "other", truth[40:48]
    paths = classes(tmp_path / "a", first, truth), classes(tmp_path / "b", second, truth)
    config = PromoteConfig(metric="accuracy")
    found = compare_scores(*paths, "classification", config, config.share(1))
    assert (found.differing, found.is_better) == (8, True)


def test_a_margin_that_no_rows_could_reach_makes_a_look_free(tmp_path: Path, truth: NDArray[Any]) -> None:
    first = truth.copy()
    first[:20] = "none"
    paths = classes(tmp_path / "a", first, truth), classes(tmp_path / "b", truth, truth)
    for margin, can_win in ((0.0, True), (0.01, True), (0.03, False)):
        config = PromoteConfig(metric="accuracy", margin=margin)
        found = compare_scores(*paths, "classification", config, config.share(1))
        assert (found.can_win, found.is_better) == (can_win, can_win)


def test_the_sign_test_is_exact() -> None:
    """By the sum of the binomial distribution: the interval's end passes 0 where the tail passes alpha."""
    for differing in (13, 18, 60, 120):
        for wins in range(differing + 1):
            tail = sum(math.comb(differing, more) for more in range(wins, differing + 1)) / 2**differing
            low, high = sign_test(wins, differing, 2000, ALPHA / 50)
            assert (low > 0) == (tail < ALPHA / 50)
            assert low <= (2 * wins - differing) / 2000 <= high


@pytest.mark.parametrize("alpha", [0.0125, 0.0000688])
@pytest.mark.parametrize("rows", [59, 300, 2000])
def test_the_smallest_gain_wins_four_of_five_looks(rows: int, alpha: float) -> None:
    """Simulated: 6 % of the rows are as likely won as lost, and the gain is won besides."""
    gain = smallest_gain(rows, alpha)
    assert gain is not None
    draw, differing = np.random.default_rng(3), round(rows * (gain + 0.06))
    wins = draw.binomial(differing, (1 + gain * rows / differing) / 2, 2000)
    won = {int(number): sign_test(int(number), differing, rows, alpha)[0] > 0 for number in {*wins}}
    assert 0.77 < np.mean([won[number] for number in wins]) < 0.95


def test_no_gain_wins_on_very_few_rows_and_a_margin_asks_for_more() -> None:
    alpha = PromoteConfig().share(365)
    assert smallest_gain(10, alpha) is None and smallest_gain(0, alpha) is None
    gain, with_margin = smallest_gain(2000, alpha), smallest_gain(2000, alpha, 0.01)
    assert gain is not None and with_margin is not None and gain + 0.01 < with_margin < gain + 0.02
    assert smallest_gain(2000, alpha, 1.0) is None


def test_of_200_challengers_that_differ_by_noise_at_most_five_percent_win(tmp_path: Path, truth: NDArray[Any]) -> None:
    """2.5 % are expected: one of the two tails of a 95 % interval. Each has a champion of its own, since one lucky champion
    would hide the rate."""
    draw, settings = np.random.default_rng(8), PromoteConfig(resamples=400)
    paths, size = (tmp_path / "champion", tmp_path / "challenger"), draw.integers(20, 200, 300)
    wins = {"classification": 0, "causal_lm": 0}
    for task in wins:
        for _ in range(200):
            for path in paths:
                if task == "classification":
                    classes(path, answers(draw, truth, 0.7), truth)
                else:
                    likelihoods(path, size * draw.normal(1.0, 0.2, 300), size)
            wins[task] += compare_scores(*paths, task, settings).is_better
    assert all(1 <= count <= 10 for count in wins.values()), wins


@pytest.mark.slow
def test_chance_wins_no_more_often_where_a_row_makes_several_examples(tmp_path: Path) -> None:
    """The turns of a conversation are alike: counted as independent, 39 of these 200 challengers would win."""
    draw, settings = np.random.default_rng(5), PromoteConfig(resamples=400)
    rows = np.repeat(np.arange(60), draw.integers(1, 9, 60))
    size = draw.integers(20, 200, len(rows))
    wins = 0
    for _ in range(200):
        paths = [
            likelihoods(
                tmp_path / name, size * (draw.normal(1.0, 0.2, 60)[rows] + draw.normal(0, 0.05, len(rows))), size, rows
            )
            for name in ("champion", "challenger")
        ]
        wins += compare_scores(*paths, "causal_lm", settings).is_better
    assert 1 <= wins <= 10, wins


@pytest.mark.parametrize("early", [True, False])
def test_stopping_early_keeps_the_level(early: bool) -> None:
    """Chance: the share of permutations that reach the difference is uniform."""
    alpha, trials = 0.01, 20_000
    config = PromoteConfig(resamples=100 if early else 10_000)
    shares = np.random.default_rng(7).random(trials)

    def wins(share: float, seed: int) -> bool:
        def permute(draw: np.random.Generator, size: int) -> NDArray[Any]:
            return np.where(draw.random(size) < share, 1.0, -1.0)

        seeded = config.model_copy(update={"seed": seed})
        return permutation_interval(Pair((0.0, 1.0), np.ones(9, bool), permute, 250), 1.0, seeded, alpha)[0] > 0

    count = sum(wins(share, seed) for seed, share in enumerate(shares) if share < 0.05)
    assert 0.0085 < count / trials < 0.0115


def test_permutations_that_are_as_good_count_though_their_sums_differ_in_the_last_bit(tmp_path: Path) -> None:
    """Macro F1 of three classes of ten rows, by fractions: in another class a row more counts as much."""
    wins, each = (4, 3, 3), 4  # of so many differing rows of each class, whose other answer is the next class

    def f1(right: tuple[int, ...]) -> Fraction:
        hits = [10 - each + count for count in right]
        return sum((Fraction(2 * hits[n], 10 + hits[n] + each - right[n - 1]) for n in range(3)), Fraction(0)) / 3

    def gain(right: tuple[int, ...]) -> Fraction:
        return f1(right) - f1(tuple(each - count for count in right))

    chance = sum(
        math.prod(math.comb(each, count) for count in right)
        for right in product(range(each + 1), repeat=3)
        if gain(right) >= gain(wins)
    ) / 2 ** (3 * each)
    names = np.array(LABELS)[[0, 2, 1]]  # in this order floats tell some of the equal ones apart
    label, at = np.repeat(np.arange(3), 10), np.tile(np.arange(10), 3)
    is_won = at < np.array(wins)[label]
    wrong = (label + 1) % 3
    both = np.where(is_won, wrong, label), np.where(is_won | (at >= each), label, wrong)
    paths = [classes(tmp_path / str(n), names[one], names[label]) for n, one in enumerate(both)]
    config = PromoteConfig(metric="f1_macro", resamples=50_000)
    for alpha, is_better in ((1.1 * chance, True), (0.9 * chance, False)):
        assert compare_scores(*paths, "classification", config, alpha).is_better is is_better


def test_equal_models_have_no_interval(tmp_path: Path, truth: NDArray[Any]) -> None:
    same = classes(tmp_path / "a", truth, truth)
    found = compare_scores(same, same, "classification", PromoteConfig())
    assert (found.low, found.high, found.differing, found.is_better) == (0.0, 0.0, 0, False)


def test_a_function_is_called_no_longer_than_the_decision_needs(
    tmp_path: Path, truth: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 46,500 permutations of a third look would be 93,000 calls."""
    monkeypatch.setattr(scores, "SCORES", [*scores.SCORES])
    calls = 0

    @scores.score("hit_rate", "classification", may_promote=True)
    def hit_rate(predictions: Any) -> float:
        nonlocal calls
        calls += 1
        return float((predictions.expected == predictions.predicted).mean())

    draw = np.random.default_rng(1)
    weak, alike, strong = (
        classes(tmp_path / str(n), answers(draw, truth, accuracy), truth) for n, accuracy in enumerate((0.6, 0.6, 0.8))
    )
    config = PromoteConfig.model_construct(**PromoteConfig().model_dump() | {"metric": "hit_rate"})
    alpha = config.share(3)
    for challenger, most, is_better in ((alike, 2_300, False), (strong, 2_600, True)):
        calls = 0
        found = compare_at(weak, challenger, "classification", config, alpha)
        assert found.is_better is is_better and calls <= 2 * most
        exact = compare_at(weak, challenger, "classification", PromoteConfig(metric="accuracy"), alpha)
        assert found[1:6] == pytest.approx(exact[1:6], abs=0.03)
        assert exact.is_better is is_better
    assert compare_at(weak, alike, "classification", config, alpha) == compare_at(
        weak, alike, "classification", config, alpha
    )


def test_examples_of_one_row_are_swapped_together_as_scipy_does(tmp_path: Path) -> None:
    from scipy.stats import permutation_test

    draw = np.random.default_rng(1)
    rows = draw.permutation(np.repeat(np.arange(80), 3))  # in any order
    size = draw.integers(20, 200, 240)
    both = [size * draw.normal(rate, 0.2, 80)[rows] for rate in (1.0, 0.97)]
    paths = [likelihoods(tmp_path / str(number), nll, size, rows) for number, nll in enumerate(both)]
    found = compare_scores(*paths, "causal_lm", PromoteConfig(resamples=5000))
    first, second, below = (np.bincount(rows, weights=values) for values in (*both, size))

    def difference(a: Any, b: Any, axis: int) -> Any:
        return (a.sum(axis=axis) - b.sum(axis=axis)) / below.sum() / math.log(2)

    theirs = permutation_test((first, second), difference, permutation_type="samples", n_resamples=5000, rng=3)
    reach = float(np.quantile(theirs.null_distribution, 1 - ALPHA))
    assert found.rows == 80 and found.difference == pytest.approx(theirs.statistic)
    assert (found.low, found.high) == pytest.approx((found.difference - reach, found.difference + reach), abs=0.006)


def test_models_may_make_different_numbers_of_examples_of_a_row(tmp_path: Path) -> None:
    """As one chat template that makes an example of each turn, and another that makes one of all turns."""
    draw = np.random.default_rng(4)
    rows = draw.permutation(np.repeat(np.arange(90), draw.integers(1, 5, 90)))
    size = draw.integers(20, 200, len(rows))
    turns = [size * draw.normal(rate, 0.2, 90)[rows] for rate in (1.0, 0.9)]
    first = likelihoods(tmp_path / "first", turns[0], size, rows)
    apart = likelihoods(tmp_path / "apart", turns[1], size, rows)
    sums, bytes_ = (np.bincount(rows, weights=values) for values in (turns[1], size))
    together = likelihoods(tmp_path / "together", sums, bytes_.astype(np.int64))
    found, wanted = (compare_scores(first, other, "causal_lm", PromoteConfig()) for other in (together, apart))
    assert found.rows == 90 and wanted.is_better
    assert found[1:6] == pytest.approx(wanted[1:6], rel=1e-9)


def test_a_clear_difference_wins_and_margin_and_confidence_raise_the_bar(tmp_path: Path, truth: NDArray[Any]) -> None:
    draw = np.random.default_rng(2)
    paths = (
        classes(tmp_path / "a", answers(draw, truth, 0.6), truth),
        classes(tmp_path / "b", answers(draw, truth, 0.8), truth),
    )

    def found(**more: Any) -> Comparison:
        return compare_scores(*paths, "classification", PromoteConfig(**more))

    assert found().is_better
    assert found() == found()
    assert found(seed=1) != found()
    assert not found(margin=0.2).is_better
    assert found(metric="accuracy", margin=0.2).low == found(metric="accuracy").low
    assert compare_scores(*paths, "classification", PromoteConfig(), 0.0005).low < found().low
    assert not compare_scores(*paths[::-1], "classification", PromoteConfig()).is_better


def test_the_same_model_and_fewer_bits_per_byte(tmp_path: Path) -> None:
    size = np.random.default_rng(0).integers(20, 200, 100)
    worse, better = (likelihoods(tmp_path / str(rate), size * rate, size) for rate in (1.2, 1.1))
    found = compare_scores(worse, better, "causal_lm", PromoteConfig())
    assert found.is_better and found.metric == "bits_per_byte"
    assert found.champion == pytest.approx(1.2 / math.log(2))
    assert found.difference == pytest.approx(0.1 / math.log(2))
    assert not compare_scores(better, worse, "causal_lm", PromoteConfig()).is_better
    assert not compare_scores(better, better, "causal_lm", PromoteConfig()).is_better
    assert compare_scores(worse, better, "causal_lm", PromoteConfig(metric="loss")).is_better


def test_what_can_t_be_compared_is_refused(tmp_path: Path, truth: NDArray[Any]) -> None:
    paths = classes(tmp_path / "a", truth, truth), classes(tmp_path / "b", truth[:-1], truth[:-1])
    with pytest.raises(DataError, match="600 frozen rows, the challenger of 599: they can't be paired"):
        compare_scores(*paths, "classification", PromoteConfig())
    size, rows = np.full(40, 100), np.arange(40) // 2
    others = (likelihoods(tmp_path / str(n), size * 1.0, size, which) for n, which in enumerate((rows, rows + 1)))
    with pytest.raises(DataError, match="20 frozen rows, the challenger of 20 other ones"):
        compare_scores(*others, "causal_lm", PromoteConfig())
    with pytest.raises(ConfigError, match="bits_per_byte is no metric of this task"):
        score_of(PromoteConfig(metric="bits_per_byte"), "classification")
