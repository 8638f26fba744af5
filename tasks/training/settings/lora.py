"""The settings of LoRA, which a recipe writes below `train.lora`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from trnflow.tasks.config import ORDERED, WHEN_SET, NonNegativeCount, Positive, PositiveCount
from trnflow.tasks.training.settings.group import Fraction, Group

ALL_LINEAR = "all-linear"


class LoraConfig(Group):
    """Settings of LoRA, for `train.method=lora`.

    Each adapted layer computes W x + alpha / rank * B A dropout(x), where W is frozen and A and B are trained."""

    rank: Annotated[int, Field(gt=0, le=1 << 16)] = 8
    """Rows of A and columns of B. A higher rank trains more parameters."""

    alpha: PositiveCount = 8
    """The update of a layer counts alpha / rank times."""

    use_rslora: bool = False
    """Let it count alpha / sqrt(rank) times instead (rank-stabilized LoRA): high ranks learn no slower than low ones."""

    rank_pattern: Annotated[dict[str, Annotated[int, Field(gt=0, le=1 << 16)]], ORDERED] = {}
    """Other ranks of some layers: {last parts of their names, as in `targets`: rank}; the first that fits counts."""

    alpha_pattern: Annotated[dict[str, PositiveCount], ORDERED] = {}
    """Other values of alpha of some layers, as `rank_pattern`."""

    dropout: Fraction = 0.0
    """The probability with which an input of A is set to zero during training."""

    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The layers that are adapted: a list of last parts of their names ("*" for any one part), such as q_proj or
    layers.*.mlp.up_proj; or "all-linear", every linear layer but the head. Default: the layers that peft chooses for the model's
    type."""

    layers_to_transform: Annotated[tuple[NonNegativeCount, ...], WHEN_SET] = ()
    """Numbers of the model's layers that are adapted, from 0, such as [30, 31]. Default: all that `targets` names."""

    modules_to_save: Annotated[tuple[str, ...], WHEN_SET] = ()
    """Parts of the model that are trained whole beside LoRA, and saved with the adapter: parts of names, as in `train.freeze`,
    such as embed_tokens or norm. A classifier's head always is."""

    use_dora: Annotated[bool, WHEN_SET] = False
    """Train the length of each weight's rows apart from their direction (DoRA): low ranks come closer to full training, a step
    takes longer. Data parallel, on a base in train.dtype."""

    init_lora_weights: Annotated[
        Literal["gaussian", "olora", "pissa", "pissa_niter_4", "pissa_niter_16"] | None, WHEN_SET
    ] = None
    """How A and B begin. pissa: as the weight's largest singular vectors, which pissa_niter_4 and _16 compute fast and nearly;
    olora: as the first part of its QR decomposition. The frozen base keeps the rest; the published adapter has twice the rank,
    for the original base. gaussian: A normally distributed, B zero. Default: A uniformly, B zero."""

    loraplus_lr_ratio: Annotated[Positive | None, WHEN_SET] = None
    """The learning rate of B, and of vectors such as biases, is this many times `train.learning_rate` (LoRA+); its authors
    take 16."""

    base_dtype: Literal["int8", "nf4"] | None = None
    """Keep the weights of the frozen linear layers, but the head, in 8 bits (int8) or in 4 (nf4: QLoRA, by bitsandbytes), and
    compute with them in `train.dtype`. Default: in train.dtype. Engine native, data parallel without fsdp."""

    @field_validator("targets", mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str) and value != ALL_LINEAR:
            raise ValueError(f"write a list, such as [{value}], or {ALL_LINEAR}")
        return value

    @property
    def changes_base(self) -> bool:
        """Whether A and B take their beginning out of the base's weights."""
        return self.init_lora_weights not in (None, "gaussian")

    @property
    def reads_base(self) -> bool:
        """Whether the adapted layers are made from the whole weights of the base."""
        return self.changes_base or self.use_dora or self.base_dtype is not None

    @model_validator(mode="after")
    def _check_base(self) -> LoraConfig:
        init = f"lora.init_lora_weights={self.init_lora_weights}"
        if self.base_dtype and (self.changes_base or self.use_dora):
            name = init if self.changes_base else "lora.use_dora"
            raise ValueError(
                f"{name} computes with the base's exact weights, and lora.base_dtype={self.base_dtype} rounds them: leave one out"
            )
        if self.changes_base and self.use_rslora and (self.rank_pattern or self.alpha_pattern):
            raise ValueError(
                f"{init} is published with twice the rank, which peft can't scale with use_rslora and patterns: leave out "
                "lora.use_rslora, or lora.rank_pattern and lora.alpha_pattern"
            )
        return self
