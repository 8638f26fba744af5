"""Weights with a row for each of `tokenize.new_tokens` that the embeddings have none for: the mean of the rows there.

Rows beyond the tokenizer's length, which many models have, are used first and as they are, as by transformers'
`resize_token_embeddings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trnflow.tasks.artifact import Source
from trnflow.tasks.sources.model_source import model_folder
from trnflow.tasks.training.checkpoint.pretrained_weights import PretrainedWeights
from trnflow.tasks.training.model.heads import refuse_unused
from trnflow.tasks.training.model.pretrained import OPTIONS, auto_class, blank_model
from trnflow.tasks.training.shared_types import StoredWeights

if TYPE_CHECKING:
    from torch import Tensor


class GrownWeights:
    """A `StoredWeights` whose embedding and head have as many rows as those of `empty`, a model on "meta"."""

    def __init__(self, stored: StoredWeights, empty: Any) -> None:
        tables = (empty.get_input_embeddings(), empty.get_output_embeddings())
        own = {id(parameter) for table in tables if table is not None for parameter in table.parameters()}
        self._stored = stored
        self._rows = {
            name: len(parameter)
            for name, parameter in empty.named_parameters(remove_duplicate=False)
            if id(parameter) in own and stored.has(name) and stored.shape(name)[0] < len(parameter)
        }

    def has(self, name: str) -> bool:
        return self._stored.has(name)

    def shape(self, name: str) -> tuple[int, ...]:
        first, *others = self._stored.shape(name)
        return (self._rows.get(name, first), *others)

    def tensor(self, name: str) -> Tensor:
        import torch

        value = self._stored.tensor(name)
        if name not in self._rows:
            return value
        mean = value.mean(0, keepdim=True, dtype=torch.float32).to(value.dtype)
        return torch.cat([value, mean.expand(self._rows[name] - len(value), *value.shape[1:])])

    def part(self, name: str, at: tuple[slice, ...]) -> Tensor:
        return self.tensor(name)[at] if name in self._rows else self._stored.part(name, at)


def load_grown(task: str, config: Any, source: Source, dtype: str) -> tuple[Any, tuple[str, ...]]:
    """Return what `load_pretrained` does, with as many rows as `config` says."""
    import torch

    with torch.device("meta"):
        empty = auto_class(task).from_config(config, **OPTIONS)
    held = PretrainedWeights(cast(Path, model_folder(source)), empty)
    refuse_unused(empty, held.unused, source)
    stored = GrownWeights(held, empty)
    model, lacking = blank_model(empty, source, stored)
    for name, parameter in model.named_parameters():
        value = parameter.data if name in lacking else stored.tensor(name)
        parameter.data = value.to(getattr(torch, dtype), copy=True)
    return model, lacking
