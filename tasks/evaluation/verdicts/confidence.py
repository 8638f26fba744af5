"""Whether a classifier's probabilities say how often it is right."""

from __future__ import annotations

import math

from trnflow.tasks.evaluation.verdicts.facts import Facts, figure
from trnflow.tasks.evaluation.verdicts.training import risen_loss, where

FAR = 0.1
"""How far mean confidence and accuracy are apart, at least."""
ERRORS = 3.0
"""The same in standard errors of the accuracy."""


def confidence(facts: Facts) -> str | None:
    """Compare the mean probability of what is predicted with the accuracy."""
    bins = facts.report.get("calibration")
    if not bins:
        return None
    rows = sum(entry["rows"] for entry in bins)
    sure, right = (sum(entry[name] * entry["rows"] for entry in bins) / rows for name in ("confidence", "accuracy"))
    error = math.sqrt(max(sure * (1 - sure), right * (1 - right)) / rows)
    if abs(sure - right) <= max(FAR, ERRORS * error):
        return None
    text = f"the mean probability of what the model says is {figure(sure)}, and it is right in {figure(right)}"
    far = f"its probabilities are too {'low' if sure < right else 'high'}"
    if facts.temperature is not None:
        return f"{text}: {far}, though rows of validation set them; more of these that are like {facts.split} help (data.split)"
    if sure < right:
        return f"{text}: {far}; consolidate.calibrate=true helps, or more updates (train.epochs, train.learning_rate)"
    risen = risen_loss(facts)
    why = (
        f" (validation's loss rose from {figure(risen.lowest)} {where(facts, risen.step)} to {figure(risen.last)})"
        if risen
        else ""
    )
    return f"{text}: {far}{why}; consolidate.calibrate=true helps, and changes no prediction"
