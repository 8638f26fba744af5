"""Give weights the names and shapes that transformers publishes, which other programs and versions read.

transformers 5 renames some parameters when it loads a model (`embed_out` of GPT-NeoX becomes `lm_head`), and joins others
(the experts of a mixture become one tensor). A file with the names of version 5 loads in version 5 alone: version 4.57
warns, and computes with a random head. `save_pretrained` reverts these changes for a whole model; this module reverts
them for one parameter at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.training.checkpoint.merged_weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


class PublishedWeights:
    """The weights of a whole model by the names and shapes that transformers publishes. Implements the interface
    `Weights` (names, and the shape and value of each weight by its name).

    weights: the same weights by the parameter names of the model in memory; one parameter may become several published
    tensors. model: the model without values (on the "meta" device). The published tensors of the parameter that was
    read last stay in memory."""

    def __init__(self, weights: Weights, model: Any) -> None:
        import torch

        self._weights, self._model = weights, model
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sources: dict[str, str] = {}
        self._last: tuple[str, dict[str, Tensor]] = ("", {})
        for name in weights.names:
            parts = self._reverted(name, torch.empty(weights.shape(name), device="meta"))
            self._shapes |= {part: tuple(value.shape) for part, value in parts.items()}
            self._sources |= dict.fromkeys(parts, name)

    @property
    def names(self) -> list[str]:
        return list(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def tensor(self, name: str) -> Tensor:
        source = self._sources[name]
        if self._last[0] != source:
            self._last = ("", {})  # frees the memory before the next tensor is read
            self._last = (source, self._reverted(source, self._weights.tensor(source)))
        return self._last[1][name]

    def _reverted(self, name: str, value: Tensor) -> dict[str, Tensor]:
        return _reverted(self._model, name, value)


def renamed_parameters(model: Any) -> dict[str, str]:
    """Return {name in the model: name in published files} of the parameters that transformers only renames when it
    publishes the model. Parameters that keep their name, or that get another shape or become several tensors, are left
    out."""
    import torch

    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts = _reverted(model, name, torch.empty(parameter.shape, device="meta"))
        if len(parts) == 1 and (published := next(iter(parts))) != name and parts[published].shape == parameter.shape:
            found[name] = published
    return found


def _reverted(model: Any, name: str, value: Tensor) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    reverted: dict[str, Tensor] = revert_weight_conversion(model, {name: value})
    return reverted


def model_without_values(task: str, config: Any) -> Any:
    """Build the model that transformers' `config` describes on the "meta" device, where tensors have shapes and no
    values. task: "classification" or "causal_lm"."""
    import torch

    from trnflow.tasks.training.model.pretrained import OPTIONS, auto_class

    with torch.device("meta"):
        return auto_class(task).from_config(config, **OPTIONS)
