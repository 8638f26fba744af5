"""The best evaluation by `train.best_metric`, and when to stop early. Pure functions: `Best` is in every checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta

HIGHER_IS_BETTER = ("eval_accuracy",)


@dataclass(frozen=True)
class Best:
    """The best evaluation so far.

    Attributes:
        step: After which it was made, 0 for none.
        stale: Evaluations since, or since the start.
    """

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    stale: int = 0

    def after(self, config: TrainConfig, step: int, metrics: dict[str, float]) -> Best:
        """Return the new `Best`: this evaluation, if finite and better by more than `early_stopping_threshold`."""
        name = config.best_metric
        sign = 1 if name in HIGHER_IS_BETTER else -1
        gain = sign * (metrics[name] - self.metrics[name]) if self.metrics else math.inf
        if gain > config.early_stopping_threshold and math.isfinite(metrics[name]):
            return Best(step, metrics)
        return replace(self, stale=self.stale + 1)

    def exhausted(self, config: TrainConfig) -> bool:
        """Return whether `early_stopping_patience` evaluations in a row were no new best."""
        return config.early_stopping_patience is not None and self.stale >= config.early_stopping_patience


def check_selection(config: TrainConfig, packed: PackedMeta) -> None:
    """Raise ConfigError when `keep_best` or early stopping needs a `best_metric` that no evaluation will have.

    packed: Before the rows are packed it has `splits` and `task`."""
    if not config.keeps_best:
        return
    rows = packed["rows"].get("validation", {}).values() if "rows" in packed else ["validation" in packed["splits"]]
    if not any(rows):
        raise ConfigError(
            f"train.best_metric is {config.best_metric} on the validation split, which has no rows",
            "give the data a validation split (data.split.validation=0.1), or leave keep_best and early stopping out",
        )
    if config.best_metric == "eval_accuracy" and not kind_of(packed["task"]).one_class:
        raise ConfigError(
            f"train.best_metric is eval_accuracy, which the task {packed['task']} does not have", "set it to eval_loss"
        )
