"""Which evaluation is the best so far, and when there is no use in going on. Pure: its state is in every checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tasks.artifact import Meta
from tasks.errors import ConfigError
from tasks.training.config import TrainConfig

HIGHER = ("eval_accuracy",)


@dataclass(frozen=True)
class Best:
    """step: where it was evaluated, 0 before the first; metrics: all of that evaluation; stale: evaluations since then."""

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    stale: int = 0

    def after(self, config: TrainConfig, step: int, metrics: dict[str, float]) -> Best:
        """The best when `metrics` are known too: they are, if finite and better by more than `early_stopping_threshold`."""
        name = config.best_metric
        sign = 1 if name in HIGHER else -1
        gain = sign * (metrics[name] - self.metrics[name]) if self.metrics else math.inf
        if gain > config.early_stopping_threshold and math.isfinite(metrics[name]):
            return Best(step, metrics)
        return replace(self, stale=self.stale + 1)

    def exhausted(self, config: TrainConfig) -> bool:
        return config.early_stopping_patience is not None and self.stale >= config.early_stopping_patience


def check_selection(config: TrainConfig, packed: Meta) -> None:
    """packed: metadata of the rows. ConfigError where nothing yields the metric by which the best is chosen."""
    if not config.keeps_best:
        return
    if not any(packed["rows"].get("validation", {}).values()):
        raise ConfigError(
            f"train.best_metric is {config.best_metric}, of the validation split, which has no rows",
            "give the data a validation split (data.split.validation=0.1), or leave keep_best and early stopping out",
        )
    if config.best_metric == "eval_accuracy" and packed["task"] != "classification":
        raise ConfigError("train.best_metric is eval_accuracy, which a causal_lm has none of", "set it to eval_loss")
