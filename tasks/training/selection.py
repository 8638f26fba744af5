"""The best evaluation by `train.best_metric`, and when to stop early. Pure functions: `Best` is in every checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import stacked
from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from trnflow.tasks.metadata import CheckpointMeta, PackedMeta


class Validated(NamedTuple):
    """What an evaluation of the validation split gave. loss: summed over `targets`; expected: targets [rows, ...], and
    logits: float32 [rows, ..., outputs], in the split's order, empty unless the engine returns them (`reads_rows`); weights:
    the checkpoint, where the metric reads it."""

    loss: float
    targets: int
    expected: Any
    logits: Any
    weights: Input[CheckpointMeta] | None = None


@dataclass(frozen=True)
class Chosen:
    """The metric that decides which evaluation is the best.

    Attributes:
        name: In the metrics of an evaluation.
        measure: What computes it; None: every evaluation has it.
        reads_weights: Whether it computes it of the checkpoint.
    """

    name: str
    less_is_better: bool
    measure: Callable[[Validated], float | None] | None = None
    reads_weights: bool = False

    def value(self, seen: Validated) -> dict[str, float]:
        """Return {name: value}; {} if every evaluation has it. Raises DataError where the rows give no value."""
        if self.measure is None:
            return {}
        value = self.measure(seen)
        if value is None:
            raise DataError(
                f"the rows of validation give no {self.name.removeprefix('eval_')}, which is train.best_metric",
                "give them rows that have it (F1: of several classes), or choose by another metric",
            )
        return {self.name: value}


def chosen_metric(config: TrainConfig, metric: Source | None, **given: Any) -> Chosen:
    """Return what `train.best_metric` names.

    metric: tells the module that measures it, which no key but those that need it has; None for eval_loss and the
    accuracy that every evaluation counts. given: what the module's `measure` takes.
    """
    if metric is None:
        return Chosen(config.best_metric, config.best_metric == "eval_loss")
    module = import_module(metric.location["measures"])
    measure, reads = module.measure(metric, **given), "generation" in metric.location
    return Chosen(config.best_name, metric.location["less_is_better"], measure, reads)


def validated(numbers: Sequence[Sequence[float]], targets: int, rows: Sequence[Batch]) -> Validated:
    """Return an evaluation. numbers: what the engine gave for each batch; rows: the batches, with `reads_rows` alone."""
    import numpy as np

    expected, logits = [], []
    for batch, (_, _, *values) in zip(rows, numbers, strict=False):
        # masked rows only fill the batch; evaluate_model does not see them
        real = (batch.segment_ids != 0).any(1)
        expected.append(batch.targets[real])
        of_positions = batch.targets.shape[1:] if batch.targets.dtype.kind == "i" else ()
        logits.append(np.array(values, np.float32).reshape(len(batch.targets), *of_positions, -1)[real])
    wanted, given = (stacked(column) if column else np.empty(0) for column in (expected, logits))
    return Validated(math.fsum(found[0] for found in numbers), targets, wanted, given)


@dataclass(frozen=True)
class Best:
    """The best evaluation so far.

    step: after which it was made, 0 for none; stale: evaluations since, or since the start.
    """

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    stale: int = 0

    def after(self, config: TrainConfig, chosen: Chosen, step: int, metrics: Mapping[str, float]) -> Best:
        """Return the new `Best`: this evaluation, if finite and better by more than `early_stopping_threshold`."""
        value, sign = metrics[chosen.name], -1 if chosen.less_is_better else 1
        gain = sign * (value - self.metrics[chosen.name]) if self.metrics else math.inf
        if gain > config.early_stopping_threshold and math.isfinite(value):
            return Best(step, {**metrics})
        return replace(self, stale=self.stale + 1)

    def exhausted(self, config: TrainConfig) -> bool:
        """Return whether `early_stopping_patience` evaluations in a row were no new best."""
        return config.early_stopping_patience is not None and self.stale >= config.early_stopping_patience


def without_effect(config: TrainConfig, steps_per_epoch: int) -> Iterator[str]:
    """Yield what settings of evaluation do not do in a training of so few updates."""
    total = config.updates(steps_per_epoch)
    intervals = [config.eval_every or total, steps_per_epoch if config.eval_every_epoch else total]
    times = len({step for every in intervals for step in range(every, total, every)}) + 1
    evaluates = (
        f"this training of {total:,} updates evaluates {'once, after the last' if times == 1 else f'{times:,} times'}"
    )
    if config.early_stopping_patience is not None and times < config.early_stopping_patience + 2:
        patience = f"train.early_stopping_patience={config.early_stopping_patience}"
        yield f"{patience} can't stop training early: {evaluates}; set it lower, or evaluate more often (train.eval_every)"
    elif config.keeps_best and times == 1:
        yield f"train.keep_best has nothing to choose: {evaluates}; evaluate more often (train.eval_every)"
    elif config.eval_every is not None and config.eval_every >= total:
        yield f"train.eval_every={config.eval_every} does nothing: {evaluates}; set it lower"


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
    if config.best_metric == "eval_accuracy" and not kind_of(packed["task"]).per_row:
        raise ConfigError(
            f"train.best_metric is eval_accuracy, which the task {packed['task']} does not have", "set it to eval_loss"
        )
