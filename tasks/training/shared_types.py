"""Types that the model, the engines and the checkpoints share, and the prefixes of tensor names in a checkpoint.

This module imports nothing of `trnflow.tasks.training`, so every other module may import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PARAMETER, FIRST, SECOND = "parameter/", "first/", "second/"
"""Prefixes of tensor names in a checkpoint: parameters, their first moments, their second moments."""

ROW, COLUMN = "row/", "column/"
"""Prefixes of Adafactor's second moments in a checkpoint. "row/": averaged over the parameter's last dimension;
"column/": averaged over the dimension before the last."""


class TensorSlice(NamedTuple):
    """A part of one tensor of a checkpoint, as one device writes it.

    Attributes:
        name: the tensor's name, with its prefix: "parameter/", or for the optimizer's state "first/", "second/"
            (moments), "row/" or "column/" (Adafactor).
        device: the number, from 0, of the device that writes the part.
        start: the first index of the part in each dimension.
        whole: the shape of the whole tensor.
        value: the part itself, on the CPU.
    """

    name: str
    device: int
    start: tuple[int, ...]
    whole: tuple[int, ...]
    value: Tensor


@dataclass(frozen=True)
class Built:
    """A model that is ready to train, with the facts about it that the engines need."""

    model: Any
    """A transformers model, on the CPU, or on the "meta" device when it is only traced."""

    task: str
    """"classification" or "causal_lm"."""

    causal: bool
    """Whether each position attends only to itself and to positions before it in its segment (a document of a packed
    row)."""

    first_position: int
    """The position id of a row's first token: 0, or the pad id + 1 (RoBERTa)."""

    config: Meta
    """The content of the `config.json` that is written beside the trained weights."""

    lacking: tuple[str, ...] = ()
    """The parameters that the pretrained weights lack or have in another shape; these parameters were initialised from
    the seed."""

    frozen: frozenset[str] = frozenset()
    """The parameters that are not trained."""

    class_weights: tuple[float, ...] | None = None
    """The weight of each class in the loss, or None where all count alike (see `objective`)."""

    attention: str = "sdpa"
    """How attention keeps a row's segments apart: "sdpa", "documents" or "flex" (see `model.attention`)."""

    windowed: bool = False
    """Whether rows are longer than the sliding window of some layers."""

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return all parameters of the model by name; a tied parameter appears once."""
        return dict(self.model.named_parameters())

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Return the parameters that are trained (not frozen), by name, in the order of the model's
        `named_parameters`."""
        return {name: parameter for name, parameter in self.parameters().items() if name not in self.frozen}
