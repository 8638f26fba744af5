"""Stages of promotion that call the user's own functions: `compare_models` by a metric, `check_models` by checks.

They read what `score_rows` made of two models on the frozen rows, and write no files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import NOT_KEYED, NonNegative, Positive, PositiveCount, Seed, StageConfig
from trnflow.tasks.errors import DataError
from trnflow.tasks.evaluation.own_metrics import Predictions, columns_of, described, own_number
from trnflow.tasks.keys.own_functions import function_of, own_errors
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.promotion.bootstrap import compare_own
from trnflow.tasks.promotion.freeze_rows import FROZEN_ROW, SPLIT
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.stage import Workdir, stage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIX = "correct it; the scores of both models are kept"


class CompareConfig(StageConfig):
    """Settings of `compare_models`."""

    setting: Annotated[str, NOT_KEYED]
    """The setting that names the function."""
    metric: str
    """The metric's name."""
    less_is_better: bool
    """Whether a low value is good."""
    margin: NonNegative
    """As `promote.margin`."""
    alpha: Positive
    """The probability with which chance may win."""
    resamples: PositiveCount
    """As `promote.resamples`."""
    seed: Seed
    """As `promote.seed`."""


class CheckModelsConfig(StageConfig):
    """Settings of `check_models`."""

    settings: Annotated[tuple[str, ...], NOT_KEYED]
    """The settings that name the checks."""


@stage(kind="comparison")
def compare_models(
    config: CompareConfig, champion: Input, challenger: Input, frozen: Input, code: Source, out: Workdir
) -> Meta:
    """Return `Comparison` as metadata, by a metric of the user's. Raises DataError with the user's line."""
    function = function_of(code, config.setting)
    sides = [_seen(scores, frozen) for scores in (champion, challenger)]
    promote = PromoteConfig(margin=config.margin, resamples=config.resamples, seed=config.seed)

    def metric(side: int, examples: NDArray[np.int64] | slice) -> float:
        return own_number(function, config.metric, code, sides[side].take(examples))

    return compare_own(
        config.metric, metric, sides, -1.0 if config.less_is_better else 1.0, promote, config.alpha
    ).to_json()


@stage(kind="refusals")
def check_models(
    config: CheckModelsConfig,
    challenger: Input,
    frozen: Input,
    code: Source,
    champion: Input | None = None,
    *,
    out: Workdir,
) -> Meta:
    """Call the user's checks. Returns {"refusals": the reasons}. Raises DataError with the user's line."""
    ours, theirs = _seen(challenger, frozen), _seen(champion, frozen) if champion else None
    reasons = []
    for setting in config.settings:
        function = function_of(code, setting)
        first, second = (_reason(function, code, ours, theirs) for _ in range(2))
        if first != second:
            raise DataError(
                f"{described(function, code)}: it said {first!r} at the first call and {second!r} at the second",
                "let it depend on the predictions alone: no state kept between calls, no clock, no unseeded chance",
            )
        reasons += [f"{function.__name__}: {first}"] if first is not None else []
    return {"refusals": reasons}


def _reason(
    function: Callable[..., Any], code: Source, challenger: Predictions, champion: Predictions | None
) -> str | None:
    with own_errors(code, f"on the {len(challenger)} frozen rows", FIX):
        reason = function(challenger, champion)
    if reason is None:
        return None
    text = " ".join(reason.split()) if isinstance(reason, str) else ""
    if not text:
        what = f"it returned {reason!r:.40} ({type(reason).__name__})"
        raise DataError(f"{described(function, code)}: {what}", "return None, or the reason to refuse as text")
    return text[:500]


def _seen(scores: Input, frozen: Input) -> Predictions:
    """Return a model's scores on the frozen rows as the user's functions read them."""
    import numpy as np
    import pyarrow.parquet as pq

    table = pq.read_table(scores.path / "scores.parquet").sort_by([(FROZEN_ROW, "ascending"), ("row", "ascending")])
    rows = table.column(FROZEN_ROW).to_numpy().astype(np.int64)
    columns = columns_of(frozen.path / f"{SPLIT}.parquet", rows)
    kind = kind_of(scores.meta["task"])
    if kind.reads_targets:
        found = {
            name: np.array(table.column(name).to_pylist(), np.float32) for name in ("expected", "values", "decided")
        }
        return Predictions(
            kind.name, "frozen", tuple(scores.meta["labels"]), rows + 1, columns, expected=found["expected"],
            predicted=found["decided"], probabilities=found["values"], loss=table.column("loss").to_numpy().copy(),
        )  # fmt: skip
    if not kind.one_class:
        arrays = {name: table.column(name).to_numpy().copy() for name in ("nll", "tokens", "bytes")}
        return Predictions(scores.meta["task"], "frozen", (), rows + 1, columns, **arrays)
    labels = tuple(sorted({*scores.meta["labels"], *table.column("label").to_pylist()}))
    places = {label: place for place, label in enumerate(labels)}
    expected, predicted = (
        np.array([places[label] for label in table.column(name).to_pylist()], np.int64)
        for name in ("label", "predicted")
    )
    loss, none = table.column("loss").to_numpy().copy(), np.empty((len(rows), 0), np.float32)
    return Predictions(
        scores.meta["task"], "frozen", labels, rows + 1, columns,
        expected=expected, predicted=predicted, probabilities=none, loss=loss,
    )  # fmt: skip
