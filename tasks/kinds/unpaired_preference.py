"""The task `unpaired_preference`: answers that are marked desirable or not, one by one. The model is a language model.

A row of tokens is two documents: the prompt with its answer, and the prompt with the answer of another row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.kinds.kind import Metric
from trnflow.tasks.kinds.preference import CHOSEN, REJECTED, UNPAIRED, Preference

COMPLETION, LABEL = "completion", "label"
"""The columns of the rows, beside `prompt`."""
DESIRABLE, UNDESIRABLE = "desirable", "undesirable"


def are_marked(columns: Collection[str]) -> bool:
    """Return whether rows have one answer and its mark; else they are pairs."""
    return {COMPLETION, LABEL} <= {*columns}


class MarkedRewards(NamedTuple):
    """What a model says of marked answers: float64 [rows] each.

    Attributes:
        desirable: 1 or 0.
        likelihood: The answer's mean log-probability. No reference is in it.
        gain: Of the log-probability of another row's answer over the reference.
        loss: Of the objective.
    """

    reward: Any
    desirable: Any
    likelihood: Any
    gain: Any
    loss: Any

    @property
    def chosen(self) -> Any:
        return _only(self.reward, self.desirable)

    @property
    def rejected(self) -> Any:
        return _only(self.reward, 1 - self.desirable)

    @property
    def margins(self) -> Any:
        """Rewards, of undesirable answers times -1: what is above 0 is judged as it is marked."""
        return self.reward * (2 * self.desirable - 1)

    @property
    def decided(self) -> Any:
        return self.likelihood[:, None]

    def verdict(self, at: int) -> tuple[str, str]:
        names = (DESIRABLE, UNDESIRABLE)
        return names if self.desirable[at] else (UNDESIRABLE, DESIRABLE)


def _only(values: Any, wanted: Any) -> Any:
    import numpy as np

    return np.where(wanted > 0, values, np.nan)


def _mean(above: Any, below: Any) -> Any:
    """Return above / below, NaN for 0 / 0."""
    import numpy as np

    return np.divide(above, below, out=np.full(np.shape(above), np.nan), where=np.asarray(below) > 0)


def _of_each(of_rows: Callable[[MarkedRewards], Any]) -> Callable[[MarkedRewards], Any]:
    """Return the columns of a number's sums over desirable and undesirable answers, and of these answers' numbers."""

    def columns(found: MarkedRewards) -> Any:
        import numpy as np

        good, values = found.desirable, of_rows(found)
        return np.stack([values * good, values * (1 - good), good, 1 - good], axis=1).astype(float)

    return columns


def _margin(sums: Any, rows: Any) -> Any:
    return _mean(sums[..., 0], sums[..., 2]) - _mean(sums[..., 1], sums[..., 3])


def _mean_of_rows(of_rows: Callable[[MarkedRewards], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return lambda found: of_rows(found).astype(float)[:, None], lambda sums, rows: sums[..., 0] / rows


def _above_0(sums: Any, rows: Any) -> Any:
    import numpy as np

    return np.maximum(sums[..., 0] / rows, 0)


def _of_reward(found: MarkedRewards) -> Any:
    return found.reward


class UnpairedPreference(Preference):
    name = "unpaired_preference"
    marked = True
    rewards = MarkedRewards
    metrics = (
        Metric("reward_accuracy", *_mean_of_rows(lambda found: found.margins > 0), hub="accuracy"),
        Metric("reward_margin", _of_each(_of_reward), _margin, hub="reward_margin"),
        Metric(
            "likelihood_margin", _of_each(lambda found: found.likelihood), _margin, may_promote=True, is_default=True
        ),
        Metric("reward_chosen", _of_each(_of_reward), lambda sums, rows: _mean(sums[..., 0], sums[..., 2])),
        Metric("reward_rejected", _of_each(_of_reward), lambda sums, rows: _mean(sums[..., 1], sums[..., 3])),
        # the last one before the loss: training sums the gains of mismatched answers in its place
        Metric("kl", lambda found: found.gain[:, None], _above_0, less_is_better=True),
        Metric("loss", *_mean_of_rows(lambda found: found.loss), less_is_better=True, hub="loss"),
    )

    def check_rows(self, settings: Any, meta: Any) -> None:
        columns = {*meta["columns"]}
        if are_marked(columns) or {CHOSEN, REJECTED} <= columns:
            return
        sides = [(COMPLETION, LABEL), (CHOSEN, REJECTED)]
        missing = next(name for side in sides for name in side if name not in columns)
        marked = LABEL in columns and "messages" in columns
        instead = next((way for names, way in UNPAIRED.items() if {*names} <= columns and LABEL not in names), None)
        raise ConfigError(
            f"format.task: {self.name} reads the columns {COMPLETION} and {LABEL}, or {CHOSEN} and {REJECTED}, and the rows "
            f"have no column {missing} (they have {', '.join(meta['columns'])})",
            f"rename with data.columns.{COMPLETION}=messages data.columns.{LABEL}={LABEL}"
            if marked
            else instead or f"rename with data.columns.{missing}=...",
        )

    def outputs(self, found: Any, rewards: Any, loss: Any) -> tuple[Any, ...]:
        gains = (found.logps - found.reference)[:, 1]
        return MarkedRewards(rewards.sum(-1), found.marks > 0, found.means[:, 0], gains, loss)

    def judged(self, means: Any, marks: Any) -> MarkedRewards:
        import numpy as np

        own, good = means[::2], (marks > 0).astype(float)
        return MarkedRewards(own, good, own, np.zeros(len(own)), np.logaddexp(0, -own * (2 * good - 1)))

    def row_answers(self, outputs: Any, labels: list[str]) -> dict[str, list[Any]]:
        return {"reward": outputs.reward.tolist(), DESIRABLE: [bool(mark) for mark in outputs.desirable]}
