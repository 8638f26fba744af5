"""The task `preference`: of two answers to a prompt, the one that is preferred. The model is a language model.

A pair is one row of tokens, packed as two documents of a chunk, so that their segment ids are 2 n - 1 (chosen) and 2 n.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.kinds.causal_lm import CausalLM
from trnflow.tasks.kinds.kind import Metric

PROMPT, CHOSEN, REJECTED = "prompt", "chosen", "rejected"
"""The columns of the rows; `rejected` is also the column of its parts in the files of `format_prompts`."""

WEIGHED = (
    "objective", "loss_type", "beta", "simpo_gamma", "label_smoothing", "center_rewards_coefficient", "desirable_weight",
    "undesirable_weight",
)  # fmt: skip
"""The settings of training on which rewards depend."""

UNPAIRED = {
    (
        "completion",
        "label",
    ): "rows of one answer and a label suit train.objective=kto: set format.task=unpaired_preference",
    ("completion",): "rows of a prompt and one answer suit train.objective=sft: set format.task=instruction",
    ("instruction",): "instructions and answers suit train.objective=sft: set format.task=instruction",
    ("messages",): "conversations suit train.objective=sft: set format.task=chat",
}
"""Columns that other objectives read, and what to do."""


class Rewards(NamedTuple):
    """What a model says of pairs of answers: float64 [pairs] each.

    Attributes:
        chosen, rejected: Their rewards.
        likelier: 1 where the chosen answer's mean log-probability is the higher one, else 0. No reference is in it.
        loss: Of the objective.
    """

    chosen: Any
    rejected: Any
    likelier: Any
    loss: Any

    @property
    def margins(self) -> Any:
        return self.chosen - self.rejected

    @property
    def decided(self) -> Any:
        return self.likelier[:, None]

    def verdict(self, at: int) -> tuple[str, str]:
        """Return what a wrongly judged pair's first answer is, and as what it is judged."""
        return CHOSEN, REJECTED


def _mean(name: str, of_pairs: Callable[[Rewards], Any], **flags: Any) -> Metric:
    return Metric(
        name, lambda found: of_pairs(found).astype(float)[:, None], lambda sums, rows: sums[..., 0] / rows, **flags
    )


class Preference(CausalLM):
    name = "preference"
    formats = ()
    pairs = True
    rewards: Any = Rewards
    metrics: tuple[Metric, ...] = (
        _mean("reward_accuracy", lambda found: found.chosen > found.rejected, hub="accuracy"),
        _mean("reward_margin", lambda found: found.margins, hub="reward_margin"),
        _mean("likelihood_accuracy", lambda found: found.likelier, hub="accuracy", may_promote=True, is_default=True),
        _mean("reward_chosen", lambda found: found.chosen),
        _mean("reward_rejected", lambda found: found.rejected),
        _mean("loss", lambda found: found.loss, less_is_better=True, hub="loss"),
    )

    def check_rows(self, settings: Any, meta: Any) -> None:
        missing = [name for name in (CHOSEN, REJECTED) if name not in meta["columns"]]
        if not missing:
            return
        instead = next((way for names, way in UNPAIRED.items() if {*names} <= {*meta["columns"]}), None)
        raise ConfigError(
            f"format.task: preference reads the columns {CHOSEN} and {REJECTED}, and the rows have no column {missing[0]} "
            f"(they have {', '.join(meta['columns'])})",
            instead or f"rename with data.columns.{missing[0]}=...",
        )

    def outputs(self, found: Any, rewards: Any, loss: Any) -> tuple[Any, ...]:
        """Return tensors as `Rewards`. found: `Answers` [pairs]; rewards: [pairs, 2]; loss: [pairs]."""
        return Rewards(rewards[:, 0], rewards[:, 1], found.means[:, 0] > found.means[:, 1], loss)

    def judged(self, means: Any, marks: Any) -> Any:
        """Return `Rewards` without a reference. means: of the texts of pairs, one after another; marks: labels of rows."""
        import numpy as np

        chosen, rejected = means[::2], means[1::2]
        return Rewards(chosen, rejected, (chosen > rejected).astype(float), np.logaddexp(0, rejected - chosen))

    def row_answers(self, outputs: Any, labels: list[str]) -> dict[str, list[Any]]:
        return {"reward_chosen": outputs.chosen.tolist(), "reward_rejected": outputs.rejected.tolist()}
