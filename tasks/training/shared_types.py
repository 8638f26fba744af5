"""Types that model, engines and checkpoints share, and prefixes of tensor names. Imports nothing of `training`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from trnflow.tasks.metadata import Task

PARAMETER, FIRST_MOMENT, SECOND_MOMENT = "parameter/", "first/", "second/"
"""Prefixes of tensor names in a checkpoint: parameters and their moments."""

AVERAGE = "average/"
"""Prefix of the moving average of a parameter (`train.ema_decay`)."""

SCALES = "scales/"
"""Prefix, before that of a moment, of the scales of its blocks in 8 bits."""

ROW, COLUMN = "row/", "column/"
"""Prefixes of Adafactor's second moments: averages over the last dimension, over the one before it."""


class TensorSlice(NamedTuple):
    """A part of a checkpoint's tensor. start: first index in each dimension; whole: shape of the whole tensor."""

    name: str
    device: int
    start: tuple[int, ...]
    whole: tuple[int, ...]
    value: Tensor


class StoredWeights(Protocol):
    """Parameters in files, by the model's names: a pretrained model's, or a checkpoint's."""

    def has(self, name: str) -> bool: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def tensor(self, name: str) -> Tensor: ...
    def part(self, name: str, at: tuple[slice, ...]) -> Tensor: ...


@dataclass(frozen=True)
class Built:
    """A model that is ready to train."""

    model: Any
    """On the CPU, or on "meta" when it is only traced."""

    task: Task
    """The name of `kind`."""

    causal: bool
    """Whether a position attends only to itself and earlier ones of its segment."""

    first_position: int
    """Position id of a row's first token: 0, or the pad id + 1 (RoBERTa)."""

    config: Meta
    """The `config.json` that is written beside the trained weights."""

    lacking: tuple[str, ...] = ()
    """Parameters that the pretrained weights lack."""

    stored: StoredWeights | None = None
    """Where parameters are read from when they are placed: those that it has, but `lacking`, are blank until then."""

    frozen: frozenset[str] = frozenset()
    """Parameters that are not trained."""

    initial: Mapping[str, Tensor] = field(default_factory=dict)
    """LoRA's matrices as they began, if the base's weights lack them (PiSSA, OLoRA)."""

    class_weights: tuple[float, ...] | None = None
    """Each class's weight in the loss, or None."""

    attention: str = "sdpa"
    """How segments are kept apart: "sdpa", "documents" or "varlen"."""

    windowed: bool = False
    """Whether rows are longer than the sliding window of some layers."""

    pair: bool = False
    """Whether rows have two texts, which their segment ids tell apart."""

    head: Meta = field(default_factory=dict)
    """`Kind.head` of rows whose texts are segments, read apart."""

    new_tokens: tuple[int, ...] = ()
    """The ids of `tokenize.new_tokens`."""

    @property
    def kind(self) -> Kind:
        """What the model learns."""
        return kind_of(self.task)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All parameters by name; a tied one once."""
        return dict(self.model.named_parameters())

    @property
    def numbers(self) -> int:
        """How many weights the model has, those of quantised layers too."""
        packed = sum(getattr(module, "packed_numbers", 0) for module in self.model.modules())
        return packed + sum(parameter.numel() for parameter in self.parameters().values())

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The trained parameters by name, in the model's order."""
        return {name: parameter for name, parameter in self.parameters().items() if name not in self.frozen}
