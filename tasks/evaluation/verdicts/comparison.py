"""Whether the model is better than a baseline: on classes McNemar's exact test, else a paired permutation test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.evaluation.baselines.config import BASELINE, BEFORE
from trnflow.tasks.evaluation.paired import chance, pair_of_sums
from trnflow.tasks.evaluation.scores import SCORES, Score, accuracy, promoting
from trnflow.tasks.evaluation.verdicts.facts import Facts, figure
from trnflow.tasks.kinds.multi_label import RARE, MultiLabel
from trnflow.tasks.kinds.targets import Outputs

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import BaselineReport

NAMES = {BASELINE: "the simple baseline", BEFORE: "the model before training"}

WORSE = 0.01
"""A model is called worse where chance makes one that is as good look as bad with at most this probability."""
BETTER = 0.05
"""A model is called no better where chance makes one that is no better look as good with a higher probability."""
PERMUTATIONS = 2000
MOST_CELLS = 500_000
"""Rows times classes whose permutations take some seconds: more are not compared class by class."""


class Compared(NamedTuple):
    """A baseline's metric beside the model's. worse, better: how likely chance alone is to put the model as far below, or
    above, as it is."""

    name: str
    metric: str
    model: float
    baseline: float
    worse: float
    better: float


def main_metrics(facts: Facts) -> list[str]:
    """Return the metrics that a first line may show, the best first: of classes accuracy, else that which promotes."""
    usual = [score.name for score in promoting(facts.kind.name)]
    return [*([accuracy.name] if facts.kind.one_class else []), *usual, *facts.report["metrics"]]


def compared(facts: Facts) -> list[Compared]:
    """Return each baseline that has one of the main metrics, by the best that it has; first those of the best of all."""
    known = [name for name in main_metrics(facts) if name in facts.report["metrics"]]
    found = []
    for entry in facts.report.get("baselines", []):
        metric = next((name for name in known if name in entry.get("metrics", {})), None)
        if metric is not None:
            found.append(_compared(facts, metric, entry))
    return sorted(found, key=lambda each: known.index(each.metric))


def _compared(facts: Facts, metric: str, entry: BaselineReport) -> Compared:
    other, name = facts.others.get(entry["name"]), entry["name"]
    score = next((each for each in SCORES if (each.task, each.name) == (facts.kind.name, metric)), None)
    ends = (1.0, 0.0) if other is None or score is None else _chances(facts, score, other)
    return Compared(name, metric, facts.report["metrics"][metric], entry["metrics"][metric], *ends)


def _chances(facts: Facts, score: Score, other: Any) -> tuple[float, float]:
    """Return `worse` and `better`."""
    both, metric = [other, facts.columns], score.metric
    if facts.kind.one_class and score.name != RARE:
        right = [columns.predicted == columns.expected for columns in both]
        return mcnemar(int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum()))
    if facts.kind.one_class:
        metric = next(each for each in MultiLabel.metrics if each.name == RARE)
        both = [_as_labels(columns, len(facts.labels)) for columns in both]
    if metric is not None:
        of_sums, columns, rows = metric.of_sums, metric.columns, len(other.loss)
        pair = pair_of_sums(lambda sums: of_sums(sums, rows), *(columns(each) for each in both))
    elif score.ratio is not None:
        pair = pair_of_sums(lambda sums: sums[..., 0] / sums[..., 1], *(_parts(score, each) for each in both))
    else:
        return 1.0, 0.0
    return chance(pair, -1.0 if score.less_is_better else 1.0, PERMUTATIONS)


def mcnemar(alone: int, other_alone: int) -> tuple[float, float]:
    """Return `worse` and `better` of a model. alone: rows that it alone has right; other_alone: those of the baseline."""
    from scipy.stats import binomtest

    # rows that both have right, or both wrong, tell nothing
    differing = alone + other_alone
    if not differing:
        return 1.0, 1.0
    return tuple(float(binomtest(alone, differing, alternative=side).pvalue) for side in ("less", "greater"))  # type: ignore[return-value]


def _as_labels(columns: Any, classes: int) -> Outputs:
    """Return a class of each row as the labels of several labels."""
    import numpy as np

    expected, predicted = (np.eye(classes, dtype=np.bool_)[each] for each in (columns.expected, columns.predicted))
    return Outputs(expected, predicted, predicted, columns.loss)


def _parts(score: Score, columns: Any) -> Any:
    import numpy as np

    assert score.ratio is not None
    return np.stack([np.asarray(part, np.float64) for part in score.ratio(columns)], axis=1)


def worse_than_a_baseline(facts: Facts, beside: Sequence[Compared], advice: str) -> str | None:
    worse = [each for each in beside if each.worse <= WORSE]
    if not worse:
        return None
    text, entry = f"the model is worse than {_figures(worse)}", _rare(facts)
    model = facts.report["metrics"].get(RARE, 0.0)
    if facts.kind.one_class and facts.is_balanced and entry is not None and model > entry["metrics"][RARE]:
        return (
            f"{text}, and not where each class counts alike ({RARE} {figure(model)} and {figure(entry['metrics'][RARE])}): where "
            "each row does, train.class_weights=null may help"
        )
    return f"{text}: {advice}"


def _rare(facts: Facts) -> BaselineReport | None:
    """Return the simple baseline, if it has the metric in which each class or label counts alike."""
    entries = facts.report.get("baselines", [])
    return next((each for each in entries if each["name"] == BASELINE and RARE in each.get("metrics", {})), None)


def _on_rare_labels(facts: Facts, *, worse: bool) -> Compared | None:
    """Compare by the metric in which each class or label counts alike; None of other tasks, and on the other side."""
    entry = _rare(facts)
    if not (facts.kind.one_class or facts.kind.name == MultiLabel.name) or entry is None:
        return None
    model, baseline = facts.report["metrics"][RARE], entry["metrics"][RARE]
    if model == baseline or (model < baseline) != worse:
        return None
    if facts.kind.one_class and facts.count * len(facts.labels) > MOST_CELLS:
        return None
    return _compared(facts, RARE, entry)


def worse_on_rare_labels(facts: Facts, beside: Sequence[Compared]) -> str | None:
    """Say that the simple baseline is better where each class or label counts alike, if it is not where each answer does."""
    found = None if any(each.worse <= WORSE for each in beside) else _on_rare_labels(facts, worse=True)
    if found is None or found.worse > WORSE:
        return None
    what, several = ("class", "classes") if facts.kind.one_class else ("label", "labels")
    weights = "" if facts.is_balanced else "train.class_weights=balanced, "
    return (
        f"on rare {several} the model is worse than {NAMES[BASELINE]}: {RARE}, in which each {what} "
        f"counts alike, is {figure(found.model)} and {figure(found.baseline)}; if they matter, {weights}more rows of them or "
        f"more train.epochs may help, and promote.metric={RARE} compares models by it"
    )


def no_better_than_a_baseline(facts: Facts, beside: Sequence[Compared], advice: str) -> str | None:
    """Say that the rows do not show a model to be better; without a baseline than the most frequent class."""
    # nothing is better than all right
    same = [each for each in beside if each.better > BETTER and (each.metric, each.model) != (accuracy.name, 1)]
    if same:
        text = f"{facts.count:,} rows of {facts.split} do not show that the model is better than {_figures(same)}"
        if facts.kind.one_class and (rare := _on_rare_labels(facts, worse=False)) and rare.better <= BETTER:
            return f"{text}, but it is where each class counts alike ({RARE} {figure(rare.model)} and {figure(rare.baseline)})"
        return f"{text}: more rows to evaluate on (data.split) may show it; {advice}"
    majority = facts.report.get("majority")
    value = facts.report["metrics"].get(accuracy.name)
    if beside or majority is None or value is None or value > majority[accuracy.name]:
        return None
    return (
        f"the model is no better than always saying the most frequent class (accuracy {figure(value)} and "
        f"{figure(majority[accuracy.name])}): {advice}"
    )


def _figures(beside: Sequence[Compared]) -> str:
    """Return the names of baselines, each metric once with the model's figure and those of the baselines."""
    groups = [(metric, [*group]) for metric, group in groupby(beside, key=lambda each: each.metric)]
    return ", and ".join(
        f"{' and '.join(NAMES[each.name] for each in group)} ({metric} {figure(group[0].model)} and "
        f"{' and '.join(figure(each.baseline) for each in group)})"
        for metric, group in groups
    )
