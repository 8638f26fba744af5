"""Settings: what is trained, and by which loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import PrivateAttr, model_validator

from trnflow.tasks.config import GRAPH, NOT_KEYED, WHEN_SET, Hook, Positive
from trnflow.tasks.training.settings.group import Fraction, Group
from trnflow.tasks.training.settings.lora import LoraConfig


class MethodSettings(Group):
    """What is trained. One of the groups of settings below `train:`."""

    method: Annotated[Literal["full", "lora", "head"], GRAPH] = "full"
    """full: train all weights. lora: train LoRA matrices, and a classifier's head. head: train the head alone: a classifier's,
    or a language model's output layer where that has weights of its own. Weights that are not trained have no gradient,
    optimizer state or fp32 copy."""

    lora: Annotated[LoraConfig | None, GRAPH] = None
    """LoRA's settings, for method=lora alone."""

    freeze: Annotated[tuple[str, ...], GRAPH] = ()
    """Parts of the model that method=full does not train: parts of names that follow each other ("*" for any one part), such
    as embeddings or encoder.layer.0."""

    warm_start_from: Annotated[str | None, NOT_KEYED] = None  # the named artifact is an input
    """Begin with the weights of an earlier model in the store instead of `model.source`'s. It takes the digest of an artifact of
    consolidate or train, or a recipe's name, which stands for the model of its newest completed run. `NAME@champion` stands for
    a recipe's champion (no earlier model as long as there is none), `NAME@N` for its champion of number N. The architecture
    must be the same."""

    @model_validator(mode="before")
    @classmethod
    def _fill_lora(cls, values: Any) -> Any:
        """Write out LoRA's defaults, so that `method: lora` with and without `lora: {}` has one key."""
        if isinstance(values, dict) and values.get("method") == "lora" and values.get("lora") is None:
            return {**values, "lora": {}}
        return values

    @model_validator(mode="after")
    def _check_lora(self) -> MethodSettings:
        if self.lora is not None and self.method != "lora":
            raise ValueError(f"lora is set, and method is {self.method}: set method=lora, or lora=null")
        if self.freeze and self.method != "full":
            raise ValueError(
                f"freeze is for method full, and {self.method} freezes all but what it trains: leave one out"
            )
        return self


class LossSettings(Group):
    """The loss that training minimises. One of the groups of settings below `train:`.

    Evaluation always reports the plain cross entropy, so its results can be compared between values of these settings."""

    loss: Annotated[Hook | None, NOT_KEYED] = None
    """A function of yours that computes the loss, `package.module:name`, instead of the task's own: called with logits, targets
    and the weights of classes, it returns a sum over the targets (docs/own_code.md)."""

    label_smoothing: Annotated[Fraction, GRAPH] = 0.0
    """The share of each target's probability that is spread evenly over all classes or tokens. Of objective dpo with
    loss_type=robust, and of simpo, the share of pairs that are believed to be the wrong way round."""

    neftune_noise_alpha: Annotated[Positive | None, GRAPH, WHEN_SET] = None
    """Add uniform noise of at most this / sqrt(positions x width of the model) to the embeddings of each pass (NEFTune); its
    authors take 5 to 15."""

    class_weights: Literal["auto", "balanced"] | dict[str, Positive] | None = None
    """How much a target of each label counts in the loss: a mapping from label to weight (labels left out: 1), or "balanced":
    rows / (classes x rows of the label). auto: balanced where a row has one class, without `loss`. Default:
    all labels count alike."""

    _loss_function: Callable[..., Any] | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check_loss(self) -> LossSettings:
        if self.loss and self.label_smoothing:
            raise ValueError("label_smoothing is of the built-in loss: leave it out, or leave `loss` out")
        return self

    @property
    def loss_function(self) -> Callable[..., Any] | None:
        """What `loss` names; None without it."""
        assert self.loss is None or self._loss_function is not None, "with_loss_function imports it"
        return self._loss_function

    def with_loss_function(self, function: Callable[..., Any]) -> Self:
        config = self.model_copy()
        config._loss_function = function
        return config
