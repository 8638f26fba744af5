"""The recipe's section `promote`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trnflow.tasks.config import NonNegative, Positive, Seed, StageConfig
from trnflow.tasks.evaluation.scores import PROMOTING

if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[PROMOTING]


class PromoteConfig(StageConfig):
    """When a challenger replaces the champion: the lower end of the bootstrap interval of the difference must exceed
    `margin`, and at least 30 frozen rows must have been compared."""

    metric: Metric | None = None
    """The metric by which two models are compared. Default: weighted F1 for classification, bits per byte for language models."""
    margin: NonNegative = 0.0
    """The amount by which the challenger must surely be better, in units of the metric."""
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.95
    """The confidence of the two-sided bootstrap interval."""
    resamples: Annotated[int, Field(ge=100, le=100_000)] = 2000
    """The number of bootstrap resamples."""
    frozen_days: Positive = 180.0
    """The age in days from which `trnflow champions` says that the frozen rows are old."""
    keep_models: Annotated[int, Field(ge=1, le=1000)] = 3
    """The number of a recipe's models that `trnflow gc` keeps with all that their runs made: the last that `trnflow retrain`
    judged, promoted or not. The champion's run is kept besides. Counts when a model is judged."""
    seed: Seed = 0
    """The seed of the bootstrap."""
