"""What `train.best_metric` may name, and the code that then is in train's key: the chosen metric's file, no other's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from trnflow.tasks.artifact import CODE, Source
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.evaluation.own_best_metric import SETTING
from trnflow.tasks.evaluation.own_metrics import OwnMetric
from trnflow.tasks.evaluation.scores import SCORES, Score
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import NO_FILES, code_source
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.training.config import TrainConfig

MEASURES = "trnflow.tasks.evaluation.best_metric"
MEASURES_OWN = "trnflow.tasks.evaluation.own_best_metric"


def measurable(kind: Kind) -> dict[str, Score]:
    """Return {name as train reports it: metric} of a task's metrics that need no generated texts."""
    return {f"eval_{entry.name}": entry for entry in SCORES if entry.task == kind.name and not entry.of_texts}


def check_metric(config: TrainConfig, kind: Kind, own: Iterable[OwnMetric]) -> None:
    """Raise ValueError if `best_metric` is nothing that training can measure for the task."""
    named, known, mine = config.best_metric, measurable(kind), [metric.function for metric in own]
    is_unused = named == "eval_accuracy" and not config.keeps_best
    if named == "eval_loss" or is_unused or named in known or (named in mine and kind.per_row and not kind.pairs):
        return
    if named in mine:
        raise ValueError(
            f"{SETTING} is a function of yours, and the task {kind.name} has no predictions of rows while it trains: "
            f"name one of {', '.join(known)}"
        )
    of_texts = named.removeprefix("eval_") in {entry.name for entry in SCORES if entry.of_texts}
    why = "which needs generated texts" if of_texts else "which is none of its metrics"
    raise ValueError(
        f"{SETTING} is {named}, {why}: name one of {', '.join([*known, *mine])}, or add a function to evaluate.metrics"
    )


def chosen_source(
    config: TrainConfig,
    kind: Kind,
    own: OwnMetric | None,
    folder: Path | None,
    home: Path,
    memo: Memo,
    files: Mapping[str, Path] = NO_FILES,
) -> Source:
    """Return the code that measures `best_metric`.

    own: the entry of `evaluate.metrics`, whose module is looked for from `folder`.

    Returns:
        A `code_source`, whose location has "measures": module, "name": of the metric, "less_is_better", and of a built-in
        metric "function": "module:name"
    """
    if own is not None:
        if folder is None:
            raise ConfigError(f"{SETTING} names a function, and its recipe has no folder", "write it in a file")
        code = code_source({SETTING: (own.function, folder)}, home, memo, (MEASURES_OWN,), files)
        less = {f"{SETTING}.less_is_better": str(own.less_is_better).lower()}
        identity = {**code.identity, "code": code.identity["code"] | less}
        more = {"measures": MEASURES_OWN, "name": own.name, "less_is_better": own.less_is_better}
        return Source(CODE, identity, {**code.location, **more})
    entry = measurable(kind)[config.best_metric]
    # the file of a task, with the metrics that are the task's own, is in train's key anyway
    module = [] if entry.metric else [entry.function.__module__]
    code = code_source({}, home, memo, (MEASURES, *module))
    more = {"measures": MEASURES, "name": entry.name, "less_is_better": entry.less_is_better}
    function = {"function": f"{entry.function.__module__}:{entry.function.__name__}"}
    return Source(CODE, code.identity, {**code.location, **more, **function})
