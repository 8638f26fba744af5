"""The registry of objectives on pairs of answers: each is one entry here. Equations, names and defaults are TRL's (1.16).

Rewards are float32 [..., 2], of chosen and rejected answers, without gradient. Shapes in front of pairs are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trnflow.tasks.kinds.registry import kind_of

if TYPE_CHECKING:
    from torch import Tensor

_INSTEAD = "training on texts that the model samples is not here: rank its answers beforehand, and set objective=dpo"
ONLINE = dict.fromkeys(("ppo", "grpo", "rloo", "online_dpo", "reinforce"), _INSTEAD)
"""{objective of other tools: what to use instead}."""


class Settings(Protocol):
    """The settings of objectives, in `TrainConfig` and in a model's metadata."""

    @property
    def loss_type(self) -> str: ...
    @property
    def beta(self) -> float: ...
    @property
    def simpo_gamma(self) -> float: ...
    @property
    def label_smoothing(self) -> float: ...
    @property
    def center_rewards_coefficient(self) -> float: ...
    @property
    def desirable_weight(self) -> float: ...
    @property
    def undesirable_weight(self) -> float: ...


class Answers(NamedTuple):
    """What a model says of pairs. Where a row has fewer pairs than others, `there` is false and the numbers are arbitrary.

    Attributes:
        logps: [rows, pairs, 2], summed log-probabilities of the answers' tokens: chosen, rejected; of the task reward the
            model's outputs.
        tokens: [rows, pairs, 2], the number of these tokens.
        reference: `logps` of the reference; 0 without one.
        there: bool [rows, pairs].
        surprise: [rows, pairs], of all tokens of prompt and chosen answer, for objectives with `whole`; else 0.
        marks: [rows, pairs], `Batch.marks`; else 0.
        kl: [rows, pairs], the same for all: the mean gain of mismatched answers over the reference, at least 0; else 0.
    """

    logps: Tensor
    tokens: Tensor
    reference: Tensor
    there: Tensor
    surprise: Tensor
    marks: Tensor
    kl: Tensor

    @property
    def means(self) -> Tensor:
        """`logps` by token; -1 where there is no pair."""
        # 0 would have no finite gradient in orpo
        return (self.logps / self.tokens.clamp(min=1)).where(self.there[..., None], -self.logps.new_ones(()))


class Preference(NamedTuple):
    """An objective.

    Attributes:
        loss: (config, answers) -> (loss [rows, pairs], rewards [rows, pairs, 2]).
        reads: The settings that it reads.
        reference: Whether it compares with the model from which training starts.
        whole: Whether it reads `Answers.surprise`.
        task: Of the model.
        rows: The task of the rows.
        loss_types: The values of `loss_type`, the default first; () if it reads none.
    """

    loss: Callable[[Settings, Answers], tuple[Tensor, Tensor]]
    reads: tuple[str, ...]
    reference: bool = False
    whole: bool = False
    task: str = "preference"
    rows: str = "preference"
    loss_types: tuple[str, ...] = ()

    @property
    def marked(self) -> bool:
        """`Kind.marked` of the rows."""
        return kind_of(self.rows).marked


def _surprise(margins: Tensor) -> Tensor:
    import torch

    return -torch.nn.functional.logsigmoid(margins)


def _dpo(config: Settings, found: Answers) -> tuple[Tensor, Tensor]:
    gains = found.logps - found.reference
    margins = config.beta * (gains[..., 0] - gains[..., 1])
    if config.loss_type == "ipo":
        each = gains / found.tokens.clamp(min=1)
        loss = (each[..., 0] - each[..., 1] - 1 / (2 * config.beta)) ** 2
    elif config.loss_type == "robust":
        wrong = config.label_smoothing
        loss = ((1 - wrong) * _surprise(margins) - wrong * _surprise(-margins)) / (1 - 2 * wrong)
    else:
        loss = _surprise(margins)
    return loss, config.beta * gains.detach()


def _orpo(config: Settings, found: Answers) -> tuple[Tensor, Tensor]:
    import torch

    means = found.means
    # log(1 - e^x), whose two forms are each exact on one side of -log 2
    near = torch.log(-torch.expm1(means.clamp(min=-0.6931472)))
    far = torch.log1p(-torch.exp(means.clamp(max=-0.6931472)))
    odds = means - torch.where(means > -0.6931472, near, far)
    loss = found.surprise + config.beta * _surprise(odds[..., 0] - odds[..., 1])
    return loss, config.beta * means.detach()


def _simpo(config: Settings, found: Answers) -> tuple[Tensor, Tensor]:
    means, wrong = found.means, config.label_smoothing
    margins = config.beta * (means[..., 0] - means[..., 1]) - config.simpo_gamma
    return (1 - wrong) * _surprise(margins) + wrong * _surprise(-margins), config.beta * means.detach()


def _reward(config: Settings, found: Answers) -> tuple[Tensor, Tensor]:
    chosen, rejected = found.logps.unbind(-1)
    centre = config.center_rewards_coefficient * (chosen + rejected) ** 2
    return _surprise(chosen - rejected) + centre, found.logps.detach()


def _kto(config: Settings, found: Answers) -> tuple[Tensor, Tensor]:
    import torch

    gains = (found.logps - found.reference)[..., 0]
    baseline = found.kl if reads_kl(config.loss_type) else 0.0
    weights = torch.where(found.marks > 0, config.desirable_weight, config.undesirable_weight)
    loss = weights * torch.sigmoid(config.beta * found.marks.sign() * (baseline - gains))
    rewards = config.beta * gains.detach()
    # of each kind of answers apart: margins are then those of means
    return loss, torch.stack([rewards * found.marks.clamp(min=0), rewards * (-found.marks).clamp(min=0)], dim=-1)


def reads_kl(loss_type: str) -> bool:
    """Return whether a loss reads `Answers.kl`."""
    return loss_type == "kto"


PREFERENCES = {
    "dpo": Preference(
        _dpo, ("loss_type", "beta", "label_smoothing"), reference=True, loss_types=("sigmoid", "robust", "ipo")
    ),
    "orpo": Preference(_orpo, ("beta",), whole=True),
    "simpo": Preference(_simpo, ("beta", "simpo_gamma", "label_smoothing")),
    "reward": Preference(_reward, ("center_rewards_coefficient",), task="reward"),
    "kto": Preference(
        _kto, ("loss_type", "beta", "desirable_weight", "undesirable_weight"), reference=True,
        task="unpaired_preference", rows="unpaired_preference", loss_types=("kto", "apo_zero_unpaired"),
    ),
}  # fmt: skip
"""{value of `train.objective`: objective}; sft is none of them."""


def needs_reference(objective: str) -> bool:
    """Return whether training reads the reference's log-probabilities."""
    return objective in PREFERENCES and PREFERENCES[objective].reference


def task_of(objective: str, task: str) -> str:
    """Return the task of a model. task: of its rows."""
    return PREFERENCES[objective].task if objective in PREFERENCES else task


def metrics_of(objective: str) -> tuple[str, ...]:
    """Return what training and evaluations report of pairs beside the loss, means over them; () for one answer."""
    metrics = kind_of(PREFERENCES[objective].task).metrics if objective in PREFERENCES else ()
    return tuple(metric.name for metric in metrics if metric.name != "loss")
