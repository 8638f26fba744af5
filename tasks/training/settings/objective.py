"""Settings: what training minimises, and how preferences are weighed. Names and defaults are TRL's (1.16)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import field_validator, model_validator

from trnflow.tasks.config import GRAPH, WHEN_SET, NonNegative, Positive
from trnflow.tasks.kinds.preference import WEIGHED
from trnflow.tasks.training.preference_losses import ONLINE, PREFERENCES
from trnflow.tasks.training.settings.method import LossSettings


class ObjectiveSettings(LossSettings):
    """What training minimises. One of the groups of settings below `train:`."""

    objective: Annotated[Literal["sft", "dpo", "orpo", "simpo", "reward", "kto"], GRAPH, WHEN_SET] = "sft"
    """sft: the task's own loss. The others train on `format.task: preference`. dpo: to prefer the chosen answer more than the
    model does from which training starts. orpo, simpo: to prefer it without such a reference; orpo also trains on the chosen
    answer itself. reward: a model with one output, higher for the chosen answer. kto, on `format.task: unpaired_preference`: to
    give desirable answers more than other answers gain over the reference, and undesirable ones less."""

    loss_type: Annotated[Literal["sigmoid", "robust", "ipo", "kto", "apo_zero_unpaired"], GRAPH, WHEN_SET] = "sigmoid"
    """The loss of dpo and kto. sigmoid: the logistic loss of the difference of rewards. robust: the same where a share
    `label_smoothing` of the pairs is believed to be the wrong way round. ipo: the squared distance of the difference of mean
    log-probabilities from 1 / (2 beta). Of objective kto `kto`, its default, or `apo_zero_unpaired`: rewards are compared with 0,
    not with the gain of mismatched answers."""

    beta: Annotated[Positive, WHEN_SET] = 0.1
    """The scale of rewards of dpo, orpo, simpo and kto. In dpo and kto a higher one keeps the model closer to the reference."""

    simpo_gamma: Annotated[NonNegative, WHEN_SET] = 0.5
    """The margin by which simpo wants the chosen answer's reward to be higher."""

    center_rewards_coefficient: Annotated[NonNegative, WHEN_SET] = 0.0
    """The weight with which reward adds the squared sum of a pair's rewards, so that they stay around 0."""

    desirable_weight: Annotated[Positive, WHEN_SET] = 1.0
    """How much a desirable answer counts in the loss of kto."""

    undesirable_weight: Annotated[Positive, WHEN_SET] = 1.0
    """How much an undesirable answer counts in the loss of kto."""

    @model_validator(mode="before")
    @classmethod
    def _fill_loss_type(cls, values: Any) -> Any:
        """Set the objective's own default."""
        entry = PREFERENCES.get(str(values.get("objective"))) if isinstance(values, dict) else None
        if entry and entry.loss_types and values.get("loss_type") is None:
            return {**values, "loss_type": entry.loss_types[0]}
        return values

    @field_validator("objective", mode="before")
    @classmethod
    def _is_here(cls, value: object) -> object:
        if str(value).lower() in ONLINE:
            raise ValueError(ONLINE[str(value).lower()])
        return value

    @model_validator(mode="after")
    def _settings_are_read(self) -> ObjectiveSettings:
        """Raise ValueError for a setting that the objective does not read."""
        if self.objective in PREFERENCES and (self.loss or self.class_weights not in (None, "auto")):
            name = "loss" if self.loss else "class_weights"
            raise ValueError(f"{name} is for objective sft: leave it out, or objective={self.objective}")
        reads = PREFERENCES[self.objective].reads if self.objective in PREFERENCES else ("label_smoothing",)
        for name in WEIGHED[1:]:
            if name not in reads and getattr(self, name) != ObjectiveSettings.model_fields[name].default:
                others = [other for other, entry in PREFERENCES.items() if name in entry.reads]
                raise ValueError(
                    f"{name} is not read by objective {self.objective}: leave it out, or set objective={' or '.join(others)}"
                )
        known = PREFERENCES[self.objective].loss_types if self.objective in PREFERENCES else ()
        if known and self.loss_type not in known:
            raise ValueError(
                f"loss_type {self.loss_type} is not one of objective {self.objective}: set loss_type={' or '.join(known)}"
            )
        smooths = self.objective != "dpo" or self.loss_type == "robust"
        if self.label_smoothing and not smooths:
            raise ValueError(f"label_smoothing is not read by loss_type {self.loss_type}: set loss_type=robust")
        if self.label_smoothing >= 0.5 and self.objective == "dpo":
            raise ValueError(
                "label_smoothing must be below 0.5: with half of the pairs wrong there is nothing to learn"
            )
        return self
