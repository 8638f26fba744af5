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

WEIGHED = ("objective", "loss_type", "beta", "simpo_gamma", "label_smoothing", "center_rewards_coefficient")
"""The settings of training on which rewards depend."""

UNPAIRED = {
    (
        "completion",
        "label",
    ): "rows of one answer and a label are for KTO, which is not here: give pairs, or train on the good "
    "answers with format.task=instruction and train.objective=sft",
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


def _mean(name: str, of_pairs: Callable[[Rewards], Any], **flags: Any) -> Metric:
    return Metric(
        name, lambda found: of_pairs(found).astype(float)[:, None], lambda sums, rows: sums[..., 0] / rows, **flags
    )


class Preference(CausalLM):
    name = "preference"
    formats = ()
    pairs = True
    metrics: tuple[Metric, ...] = (
        _mean("reward_accuracy", lambda found: found.chosen > found.rejected, hub="accuracy"),
        _mean("reward_margin", lambda found: found.chosen - found.rejected, hub="reward_margin"),
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

    def row_answers(self, outputs: Rewards, labels: list[str]) -> dict[str, list[Any]]:
        return {"reward_chosen": outputs.chosen.tolist(), "reward_rejected": outputs.rejected.tolist()}
