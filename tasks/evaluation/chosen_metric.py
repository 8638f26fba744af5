"""What `train.best_metric` may name, and the code that then is in train's key: the chosen metric's file, no other's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from trnflow.tasks.artifact import CODE, Meta, Source
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.evaluation.config import PredictConfig
from trnflow.tasks.evaluation.own_best_metric import SETTING
from trnflow.tasks.evaluation.own_metrics import OwnMetric
from trnflow.tasks.evaluation.scores import SCORES, Score
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import NO_FILES, code_source
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.training.config import TrainConfig

MEASURES = "trnflow.tasks.evaluation.best_metric"
MEASURES_TEXTS = "trnflow.tasks.evaluation.best_text_metric"
MEASURES_OWN = "trnflow.tasks.evaluation.own_best_metric"


def measurable(kind: Kind) -> dict[str, Score]:
    """Return {name as train reports it: metric} of a task's metrics."""
    return {f"eval_{entry.name}": entry for entry in SCORES if entry.task == kind.name}


def reads_texts(config: TrainConfig, kind: Kind) -> bool:
    """Return whether `best_metric` is of generated texts."""
    named = measurable(kind).get(config.best_metric)
    return config.keeps_best and named is not None and named.of_texts


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
    raise ValueError(
        f"{SETTING} is {named}, which is none of its metrics: name one of {', '.join([*known, *mine])}, or add a function "
        "to evaluate.metrics"
    )


def chosen_source(
    config: TrainConfig,
    kind: Kind,
    evaluation: PredictConfig,
    own: OwnMetric | None,
    folder: Path | None,
    home: Path,
    memo: Memo,
    files: Mapping[str, Path] = NO_FILES,
) -> Source:
    """Return the code that measures `best_metric`.

    evaluation: How texts are generated, for a metric of them. own: The entry of `evaluate.metrics`, whose module is
    looked for from `folder`. Raises ConfigError for a metric of texts without prompts.

    Returns:
        A `code_source`, whose location has "measures": module, "name": of the metric, "less_is_better", and of a built-in
        metric "function": "module:name"; of one of texts "generation", its settings, in the identity too
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
    measures = MEASURES_TEXTS if entry.of_texts else MEASURES
    code = code_source({}, home, memo, (measures, *module))
    more = {"measures": measures, "name": entry.name, "less_is_better": entry.less_is_better}
    function = {"function": f"{entry.function.__module__}:{entry.function.__name__}"}
    location = {**code.location, **more, **function}
    if not entry.of_texts:
        return Source(CODE, code.identity, location)
    generation = _generation(evaluation)
    keyed = {f"evaluate.{name}": str(value) for name, value in generation.items()}
    return Source(
        CODE, {**code.identity, "code": code.identity["code"] | keyed}, {**location, "generation": generation}
    )


def _generation(evaluation: PredictConfig) -> Meta:
    settings = evaluation.generation
    if not settings.prompts:
        raise ConfigError(
            f"{SETTING} is of generated texts, and evaluate.generation.prompts is 0: there are none",
            "set evaluate.generation.prompts to the number of validation rows to answer at each evaluation",
        )
    return {
        "prompts": settings.prompts,
        "max_new_tokens": settings.max_new_tokens,
        "device": evaluation.device or "cpu",
    }
