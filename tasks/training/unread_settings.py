"""Settings of a recipe that its training does not read, which other programs ignore silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trnflow.tasks.training.config import TrainConfig

PACKED = ("bfd", "concat")
"""Values of pack.strategy with which all rows have one length."""


def unread_settings(config: TrainConfig, packed: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is set and has no effect. packed: metadata of the rows."""

    def is_set(name: str) -> bool:
        return bool(getattr(config, name) != TrainConfig.model_fields[name].default)

    if is_set("decay_ratio") and config.schedule != "warmup_stable_decay":
        yield (
            f"train.decay_ratio={config.decay_ratio} does nothing with train.schedule={config.schedule}: "
            "it is of warmup_stable_decay"
        )
    if config.optimizer == "adafactor" and (unread := [*filter(is_set, ("beta1", "beta2", "eps"))]):
        yield f"train.{unread[0]}={getattr(config, unread[0])} does nothing with train.optimizer=adafactor"
    if config.group_by_length and packed.get("strategy") in PACKED:
        yield f"train.group_by_length does nothing: rows of pack.strategy={packed['strategy']} have one length"
    for name in ("best_metric", "early_stopping_threshold") if not config.keeps_best else ():
        if is_set(name):
            yield (
                f"train.{name}={getattr(config, name)} does not choose the weights, which are the last update's: "
                "set train.keep_best=true"
            )
