"""Stages of promotion that call the user's own functions: `compare_models` by a metric, `check_models` by checks.

They read what `score_rows` made of two models on the frozen rows, and write no files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import NOT_KEYED, NonNegative, Positive, PositiveCount, Seed, StageConfig
from trnflow.tasks.data.limited_process import call_own
from trnflow.tasks.data.proof import go_elsewhere
from trnflow.tasks.errors import DataError
from trnflow.tasks.evaluation.own_metrics import (
    Columns,
    Predictions,
    called_twice,
    described,
    own_number,
    read_seen,
    write_seen,
)
from trnflow.tasks.keys.own_functions import function_of, own_errors
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import stacked
from trnflow.tasks.promotion.compare import compare_own
from trnflow.tasks.promotion.freeze_rows import FROZEN_ROW, SPLIT
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.stage import Workdir, stage

if TYPE_CHECKING:
    from trnflow.tasks.system.arrays import Ints

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
    sides = [_seen(scores, frozen, out) for scores in (champion, challenger)]
    asked = {"hook": "promote.metric", "code": vars(code), "config": config.model_dump(), "sides": sides}
    return call_own(f"{__name__}:compared", asked)


def compared(arguments: Meta, limit: Any) -> Meta:
    """Return the comparison: see `compare_models`."""
    config, code = CompareConfig.model_validate(arguments["config"]), Source(**arguments["code"])
    function, sides = function_of(code, config.setting), [read_seen(side) for side in arguments["sides"]]
    both = joined(*sides)
    promote = PromoteConfig(margin=config.margin, resamples=config.resamples, seed=config.seed)
    limit(f"the {len(sides[1])} frozen rows")

    def metric(examples: Ints) -> float:
        return own_number(function, config.metric, code, both.take(examples), "promote.metric")

    sign = -1.0 if config.less_is_better else 1.0
    return compare_own(config.metric, metric, sides, sign, promote, config.alpha).to_json()


def joined(champion: Predictions, challenger: Predictions) -> Predictions:
    """Return the predictions of two models as one, the champion's first. Raises DataError if they have other outputs."""
    import numpy as np

    if champion.labels != challenger.labels:
        what = (
            f"the champion's outputs are {', '.join(champion.labels)}, the challenger's {', '.join(challenger.labels)}"
        )
        raise DataError(what, "give the recipe another name")
    arrays = {
        name: stacked([value, getattr(challenger, name)])
        for name, value in vars(champion).items()
        if isinstance(value, np.ndarray)
    }
    columns = {name: np.concatenate([value, challenger.columns[name]]) for name, value in champion.columns.items()}
    return replace(champion, columns=Columns(columns), **arrays)


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
    """Call the user's checks. Returns {"refusals": the reasons}. Raises DataError with the user's line, CodeError if two
    processes give two reasons."""
    sides = {
        "challenger": _seen(challenger, frozen, out),
        "champion": _seen(champion, frozen, out) if champion else None,
    }
    asked = {"hook": "promote.checks", "code": vars(code), "settings": list(config.settings), **sides}
    found = called_twice(f"{__name__}:reasons", asked, out.scratch)
    return {"refusals": [f"{name}: {reason}" for name, reason in found.items() if reason is not None]}


def reasons(arguments: Meta, limit: Any) -> dict[str, str | None]:
    """Return {check: the reason to refuse, or None}."""
    code, ours = Source(**arguments["code"]), read_seen(arguments["challenger"])
    theirs = read_seen(arguments["champion"]) if arguments["champion"] else None
    if arguments["elsewhere"]:
        go_elsewhere()
    limit(f"the {len(ours)} frozen rows")
    functions = (function_of(code, setting) for setting in arguments["settings"])
    return {function.__name__: _reason(function, code, ours, theirs) for function in functions}


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


def _seen(scores: Input, frozen: Input, out: Workdir) -> Meta:
    """Write a model's scores on the frozen rows as the user's functions read them."""
    import numpy as np
    import pyarrow.parquet as pq

    table = pq.read_table(scores.path / "scores.parquet").sort_by([(FROZEN_ROW, "ascending"), ("row", "ascending")])
    kind = kind_of(scores.meta["task"])
    numbers, file = table.column(FROZEN_ROW).to_numpy(), frozen.path / f"{SPLIT}.parquet"
    write = partial(write_seen, out.scratch / scores.path.name, kind.name, "frozen")
    if kind.reads_targets:
        given = {"expected": "expected", "predicted": "decided", "probabilities": "values"}
        found = {name: np.array(table.column(of).to_pylist()) for name, of in given.items()}
        found = {name: array.astype("f4" if array.dtype.kind == "f" else "i4") for name, array in found.items()}
        return write(scores.meta["labels"], file, numbers, {**found, "loss": table.column("loss").to_numpy()})
    if kind.pairs:
        said = kind.rewards(*(table.column(name).to_numpy() for name in kind.rewards._fields))
        pairs = np.stack([said.chosen, said.rejected], axis=1)
        return write((), file, numbers, {"probabilities": pairs, "loss": table.column("loss").to_numpy()})
    if not kind.one_class:
        return write((), file, numbers, {name: table.column(name).to_numpy() for name in ("nll", "tokens", "bytes")})
    labels = sorted({*scores.meta["labels"], *table.column("label").to_pylist()})
    places = {label: place for place, label in enumerate(labels)}
    expected, predicted = (
        np.array([places[label] for label in table.column(name).to_pylist()], np.int64)
        for name in ("label", "predicted")
    )
    arrays = {"expected": expected, "predicted": predicted, "probabilities": np.empty((len(numbers), 0), np.float32)}
    return write(labels, file, numbers, arrays | {"loss": table.column("loss").to_numpy()})
