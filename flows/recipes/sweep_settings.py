"""The section `sweep` of a recipe."""

from __future__ import annotations

from typing import Any, Literal

from trnflow.tasks.config import Parallel, PositiveCount, Seed, StageConfig
from trnflow.tasks.evaluation.scores import is_less_better


class SweepConfig(StageConfig):
    """Which settings `trnflow sweep` varies, how many trials (trainings with varied settings) it runs, and by which
    metric it chooses the best trial. Other runs of the recipe ignore this section."""

    settings: dict[str, str | list[Any]] = {}
    """The settings that vary, by dotted name: a range (`1e-5..1e-4`, `1e-5..1e-4:log`, `16..64:16` with a step) or a list
    of choices."""
    trials: PositiveCount | None = None
    """The number of trials. Default: 20; with `sampler` grid all combinations."""
    metric: str = "eval_loss"
    """The metric of stage `train` by which trials are compared, such as eval_loss or eval_accuracy."""
    direction: Literal["min", "max"] | None = None
    """Whether a low or a high metric is good. Default: `max` where more is better, as of accuracy, else
    `min`."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """How the settings of a trial are chosen: `tpe` from the results of earlier trials, `random`, or `grid` (every
    combination)."""
    pruner: Literal["median", "none"] = "median"
    """Whether a trial ends early when an evaluation during training is worse than the median of earlier trials."""
    parallel: Parallel = 1
    """The number of trials at a time."""
    seed: Seed = 0
    """The seed of the sampler."""
    name: str | None = None
    """The name of the study and of its folder in `<home>/sweeps`. Default: the recipe's name."""
    database: str | None = None
    """The SQLAlchemy URL of Optuna's database. Default: `sqlite:///<home>/optuna.db`."""

    @property
    def is_maximised(self) -> bool:
        """Whether a higher `metric` is better."""
        if self.direction is None:
            return not is_less_better(self.metric)
        return self.direction == "max"
