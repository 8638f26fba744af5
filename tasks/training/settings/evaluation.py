"""Settings: when to evaluate, log and save, and which weights are the result."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from trnflow.tasks.config import NOT_KEYED, NonNegative, PositiveCount
from trnflow.tasks.training.settings.group import Group

AS_REPORTED = AfterValidator(lambda name: name if ":" in name or name.startswith("eval_") else f"eval_{name}")


class EvaluationSettings(Group):
    """When to evaluate on the validation split, and which weights are the result. One of the groups of settings below
    `train:`."""

    eval_every_epoch: bool = True
    """Evaluate after each epoch. Training always evaluates before the first step and after the last."""

    eval_every: PositiveCount | None = None
    """Evaluate after every so many steps as well."""

    keep_best: bool = False
    """The result is the weights of the best evaluation instead of the last step's."""

    best_metric: Annotated[str, AS_REPORTED] = "eval_loss"
    """The metric of the validation split that decides which evaluation is the best: one of the task's, such as
    f1_macro or exact_match, as evaluate_model computes it, or a function in `evaluate.metrics`, `package.module:name`."""

    early_stopping_patience: PositiveCount | None = None
    """Stop after so many evaluations in a row without a new best, and keep the best. Default: never stop early."""

    early_stopping_threshold: NonNegative = 0.0
    """An evaluation is a new best only if it is better by more than this."""

    @property
    def best_name(self) -> str:
        """The name of `best_metric` among the metrics of an evaluation."""
        return f"eval_{self.best_metric.rpartition(':')[2].removeprefix('eval_')}"

    @property
    def keeps_best(self) -> bool:
        """Whether the result is the weights of the best evaluation: with `keep_best`, and with early stopping."""
        return self.keep_best or self.early_stopping_patience is not None


class SavingSettings(Group):
    """How often training logs and saves its state. One of the groups of settings below `train:`."""

    log_every: Annotated[PositiveCount, NOT_KEYED] = 10
    """Report metrics after every so many steps. Each report waits for the device."""

    checkpoint_every: Annotated[PositiveCount, NOT_KEYED] = 500
    """Save the training state after every so many steps."""

    keep_checkpoints: Annotated[PositiveCount, NOT_KEYED] = 2
    """How many of the newest training states are kept."""
