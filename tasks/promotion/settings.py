"""The recipe's sections `promote` and `checks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from trnflow.tasks.config import NOT_KEYED, Hook, NonNegative, Positive, Seed, StageConfig
from trnflow.tasks.evaluation.scores import PROMOTING

if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[PROMOTING]

What = Literal["rows", "label_share", "longest", "leakage", "lengths"]

LIMITS: dict[str, float] = {"rows": 0.1, "label_share": 0.1, "longest": 100_000.0, "leakage": 0.01, "lengths": 0.1}
"""The default of `limit`."""
AGAINST_CHAMPION = ("rows", "label_share", "lengths")
"""Checks that compare with the data of the champion."""
LOOKS = 365
"""`promote.looks_per_year` without a schedule."""
MOST_LOOKS = 10_000
WITH_COLUMN = ("label_share", "longest", "lengths")


OwnName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class PromoteConfig(StageConfig):
    """When a challenger replaces the champion: the lower end of the interval of the difference must exceed `margin`."""

    metric: Metric | OwnName | None = None
    """The metric by which two models are compared, or the name of a function in `evaluate.metrics` with `may_promote`.
    Default: weighted F1 for classification, bits per byte for language models."""
    margin: NonNegative = 0.0
    """The amount by which the challenger must surely be better, in units of the metric."""
    confidence: Annotated[float, Field(ge=0.5, le=0.9999)] = 0.95
    """The probability that in 365 days of judgements no challenger is promoted by chance alone."""
    looks_per_year: Annotated[int, Field(ge=1, le=MOST_LOOKS)] | None = None
    """The number of looks a year that share half of 1 - `confidence` equally; the other half goes to the first ones before all
    (docs/champions.md). Default: the firings of the recipe's retrain in a year, by the schedule in `prefect.yaml` (12 of a
    monthly one); without a schedule 365."""
    resamples: Annotated[int, Field(ge=100, le=10_000_000)] = 2000
    """The least number of permutations by which models are compared. Until the decision is certain, more are drawn, up to 100
    divided by the look's share of the year's budget. Accuracy needs none."""
    at_least: dict[str, float] = {}
    """The least values of metrics of the challenger's evaluation, such as `{arithmetic.acc: 0.4}` of a task of
    `evaluate.harness`. A challenger below one is refused, whatever the comparison says."""
    at_most: dict[str, float] = {}
    """The largest values of metrics, in the same way."""
    frozen_days: Positive = 180.0
    """The age in days from which `trnflow champions` says that the frozen rows are old."""
    keep_models: Annotated[int, Field(ge=1, le=1000)] = 3
    """The number of a recipe's models that `trnflow gc` keeps with all that their runs made: the last that `trnflow retrain`
    judged, promoted or not. The champion's run is kept besides. Counts when a model is judged."""
    seed: Seed = 0
    """The seed of the permutations."""
    checks: Annotated[tuple[Hook, ...], NOT_KEYED] = ()
    """Functions of your own, `package.module:name`, that may refuse a challenger: each gets the predictions of challenger and
    champion on the frozen rows (docs/own_code.md), and returns None or the reason."""

    def share(self, look: int) -> float:
        """Return the probability with which chance may win the look of this number among the counted ones of 365 days. The
        shares of all numbers from 1 on add up to 1 - `confidence`."""
        half, looks = (1.0 - self.confidence) / 2.0, self.looks_per_year or LOOKS
        return half / (look * (look + 1)) + (half / looks if look <= looks else 0.0)


class CheckConfig(StageConfig):
    """A check of the data that `trnflow retrain` makes before training: an entry of the recipe's section `checks`."""

    what: What
    """What is measured. `rows`: the share of the training rows that is gone since the champion was trained; 0 if there are
    more. `label_share`: the largest difference between a class's share of the training rows and its share of the
    champion's. `longest`: the number of characters of the longest text of any split. `leakage`: the share of the test rows
    whose text is also in train, before the frozen rows are dropped from train. `lengths`: the Kolmogorov-Smirnov statistic of
    the lengths of the training texts, in characters, and of the champion's: the largest difference of the shares of texts
    up to some length. (The statistic, because a p value becomes small for any difference if there are many rows. If there are
    so few that chance explains the difference, with a p value of at least 0.01, the check passes.)"""
    limit: NonNegative | None = None
    """The largest value that passes. Default: 0.1 for `rows`, `label_share` and `lengths`, 0.01 for `leakage`, 100,000 for
    `longest`."""
    then: Literal["warn", "stop"] = "warn"
    """What happens if the value is above the limit: `warn` says so and trains, `stop` ends the retrain before training."""
    column: str | None = None
    """The column that is measured. Default: for `label_share` the label, for `longest` and `lengths` all text columns
    together; `rows` and `leakage` take none."""

    @model_validator(mode="after")
    def _settings_fit(self) -> CheckConfig:
        if self.column is not None and self.what not in WITH_COLUMN:
            raise ValueError(f"`column` is for {', '.join(WITH_COLUMN)}, not for {self.what}")
        if self.what != "longest" and self.limit is not None and self.limit > 1:
            raise ValueError(f"`limit` of {self.what} is a share, at most 1")
        return self

    @property
    def most(self) -> float:
        """The largest value that passes: `limit`, or its default."""
        return LIMITS[self.what] if self.limit is None else self.limit
