"""Give weights the names and shapes that transformers publishes, one parameter at a time.

transformers 5 renames parameters when it loads a model, and joins others. A file with its names loads in version 5
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.training.checkpoint.merged_weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


class PublishedWeights:
    """A model's `Weights` by published names and shapes. model: on "meta".

    The tensors of the parameter read last stay in memory.
    """

    def __init__(self, weights: Weights, model: Any) -> None:
        import torch

        self._weights, self._model = weights, model
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sources: dict[str, str] = {}
        self._last: tuple[str, dict[str, Tensor]] = ("", {})
        for name in weights.names:
            parts = _reverted(model, name, torch.empty(weights.shape(name), device="meta"))
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
            self._last = (source, _reverted(self._model, source, self._weights.tensor(source)))
        return self._last[1][name]


def renamed_parameters(model: Any) -> dict[str, str]:
    """Return {name in the model: published name} of the parameters that are only renamed."""
    import torch

    renamed = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts = _reverted(model, name, torch.empty(parameter.shape, device="meta"))
        if len(parts) == 1 and (published := next(iter(parts))) != name and parts[published].shape == parameter.shape:
            renamed[name] = published
    return renamed


def _reverted(model: Any, name: str, value: Tensor) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    # version 4.57 would warn, and compute with a random head
    reverted: dict[str, Tensor] = revert_weight_conversion(model, {name: value})
    return reverted


def model_without_values(task: str, config: Any) -> Any:
    """Build the model of a config on "meta"."""
    import torch

    from trnflow.tasks.training.model.pretrained import OPTIONS, auto_class

    with torch.device("meta"):
        return auto_class(task).from_config(config, **OPTIONS)
