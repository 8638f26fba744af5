"""Temperature scaling (Guo et al. 2017, arXiv 1706.04599): a classifier's logits are divided by one number that is chosen on
validation rows, so that its probabilities say how often it is right.

No prediction changes. The last layer's weights are divided, so that every program that opens the folder, and every export,
has these probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.training.checkpoint.merged_weights import Weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from trnflow.tasks.system.arrays import Ints

STEPS, LARGEST = 460, 10.0
EXACT = 0.02
"""How far logits may be from what they should be, as a share of the largest: weights in 16 bits are rounded."""


class Division(NamedTuple):
    """By what parameters are divided, and their names."""

    names: list[str]
    by: float


def temperature_of(logits: NDArray[np.float32], expected: Ints) -> float:
    """Return the temperature, in hundredths, of the least loss. logits: [rows, classes]; expected: [rows].

    Of n rows the right class has the share (n + 1) / (n + 2), the others the rest, as Platt (1999) has it: few rows that are
    all right would ask for a temperature of 0.
    """
    import numpy as np

    scores, rows = logits.astype(np.float64), len(expected)
    scores -= scores.max(1, keepdims=True)
    shares = np.full(scores.shape, 1 / (rows + 2) / (scores.shape[1] - 1))
    shares[np.arange(rows), expected] = (rows + 1) / (rows + 2)

    def loss(by: float) -> float:
        scaled = scores / by
        return float(np.log(np.exp(scaled).sum(1)).sum() - (shares * scaled).sum())

    temperatures: list[float] = np.geomspace(1 / LARGEST, LARGEST, STEPS + 1).tolist()
    best = min(temperatures, key=loss)
    return round(best, 2)


def output_layer(model: Any) -> list[str]:
    """Return the names of the parameters whose outputs are the logits; [] where no linear layer is seen to make them."""
    import torch

    layers = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and layer.out_features == model.config.num_labels
    ]
    if not layers:
        return []
    (name, layer), row = layers[-1], {"input_ids": torch.ones((1, 2), dtype=torch.long)}
    with torch.inference_mode():
        whole = model(**row).logits
        for parameter in layer.parameters():
            parameter.mul_(0.5)
        halved = model(**row).logits
        for parameter in layer.parameters():
            parameter.mul_(2.0)  # powers of two are exact
    if not float((whole - 2 * halved).abs().max()) <= EXACT * float(whole.abs().max()):
        return []
    return [f"{name}.{each}" for each, _ in layer.named_parameters()]


class Divided:
    """`Weights` of which some are divided by a number, in fp32."""

    def __init__(self, weights: Weights, names: list[str], by: float) -> None:
        self._weights, self._divided, self._by = weights, names, by
        self.names = weights.names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(name)

    def tensor(self, name: str) -> Tensor:
        value = self._weights.tensor(name)
        return value.float() / self._by if name in self._divided else value
