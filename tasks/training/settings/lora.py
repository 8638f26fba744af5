"""The settings of LoRA, which a recipe writes below `train.lora`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trnflow.tasks.config import PositiveCount
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

    rank_pattern: dict[str, Annotated[int, Field(gt=0, le=1 << 16)]] = {}
    """Other ranks of some layers: {last parts of their names, as in `targets`: rank}; the first that fits counts."""

    alpha_pattern: dict[str, PositiveCount] = {}
    """Other values of alpha of some layers, as `rank_pattern`."""

    dropout: Fraction = 0.0
    """The probability with which an input of A is set to zero during training."""

    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The layers that are adapted: a list of last parts of their names ("*" for any one part), such as q_proj or
    layers.*.mlp.up_proj; or "all-linear", every linear layer but the head. Default: the layers that peft chooses for the model's
    type."""

    base_dtype: Literal["int8", "nf4"] | None = None
    """Keep the weights of the frozen linear layers, but the head, in 8 bits (int8) or in 4 (nf4: QLoRA, by bitsandbytes), and
    compute with them in `train.dtype`. Default: in train.dtype. Engine native, data parallel without fsdp."""

    @field_validator("targets", mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str) and value != ALL_LINEAR:
            raise ValueError(f"write a list, such as [{value}], or {ALL_LINEAR}")
        return value
