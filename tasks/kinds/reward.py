"""What `train.objective: reward` learns from rows of the task `preference`: a number for an answer, the model's only output.

Rows are made and packed as of `preference`; from training on, artifacts have this task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.kind import Kind, Row
from trnflow.tasks.kinds.preference import Preference
from trnflow.tasks.kinds.regression import Regression

ANSWER = "completion"
"""The column of the answer that `trnflow predict` rewards."""


class Reward(Preference):
    name = "reward"
    per_row = True
    per_position = False
    auto_class = Kind.auto_class
    pipeline = Kind.pipeline
    adapter = Kind.adapter
    problem_type = "regression"  # a pipeline then shows the number, not its sigmoid
    metrics = tuple(
        metric._replace(may_promote=True, is_default=True) if metric.name == "reward_accuracy" else metric
        for metric in Preference.metrics
        if metric.name != "likelihood_accuracy"
    )
    answers = {"text": "string", "scores": "map"}
    # what a model says of an answer is a number, as of a row of regression
    values_of = Regression.values_of
    agree = Regression.agree
    answer = Regression.answer

    def target_shape(self, rows: int, length: int, outputs: int) -> tuple[int, ...]:
        return (rows, length)

    def labels_of(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> list[str]:
        return [self.name]

    def line(self, answer: Meta) -> str:
        return f"{answer['scores'][self.name]:.4g}"
