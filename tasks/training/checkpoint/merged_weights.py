"""Build the weights of a whole trained model, for `consolidate`, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import read_json, write_json
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.model.lora import CONFIG, MAGNITUDE, PARTS, TOKENS, A, B, adapter_name, scaling
from trnflow.tasks.training.shared_types import StoredWeights

if TYPE_CHECKING:
    from torch import Tensor


class Weights(Protocol):
    """The weights of a whole model by transformers' names, in fp32 or the base file's type."""

    @property
    def names(self) -> list[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def tensor(self, name: str) -> Tensor: ...


class MergedWeights:
    """The base model's weights, rounded as training did, with trained parameters replaced and LoRA's updates added in
    fp32.

    stored: The trained parameters. model: On "meta": names and shapes. Raises ModelError when a trained parameter is not
    the model's, or one is in neither.
    """

    def __init__(self, shards: Input, base: StoredWeights, stored: Reader, model: Any) -> None:
        self._base, self._stored = base, stored
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._trained = set(stored.names)
        self._lora: Meta = read_json(shards.path / CONFIG) if (shards.path / CONFIG).exists() else {}
        self._quantised = _quantisation(shards, model)
        self.names = sorted(self._shapes)
        known = self._shapes.keys() | {
            f"{name.removesuffix('.weight')}{part}{'.default' if part == TOKENS else '.weight'}"
            for name in self._shapes
            for part in PARTS
        }
        if unknown := sorted(self._trained - known):
            raise ModelError(
                f"{unknown[0]} was trained, and {type(model).__name__} as read from model.source now has no such parameter",
                "run train again: its checkpoint is of another architecture",
            )
        lacking = [name for name in self.names if name not in self._trained and not base.has(name)]
        if lacking:
            raise ModelError(
                f"the base model's weights lack {len(lacking)} tensors of {type(model).__name__}, such as {lacking[0]}",
                "check model.source, or train.warm_start_from, against the checkpoint",
            )

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def tensor(self, name: str) -> Tensor:
        """Return a parameter. Raises ModelError for another shape in the base model."""
        if name in self._trained:
            return self._stored.tensor(name)
        value = self._base.tensor(name)
        if tuple(value.shape) != self.shape(name):
            raise ModelError(
                f"{name} of the base model has shape {list(value.shape)}, and the trained model {list(self.shape(name))}",
                "run train again: its checkpoint is of another architecture",
            )
        layer = name.removesuffix(".weight")
        if layer in self._quantised:
            value = self._quantised[layer](value)
        if f"{layer}{TOKENS}.default" in self._trained:
            return self._with_new_rows(layer, value)
        if f"{layer}{A}.weight" not in self._trained:
            return value
        merged = self._update(layer).add_(value)
        return self._stretched(layer, merged) if f"{layer}{MAGNITUDE}.weight" in self._trained else merged

    def _with_new_rows(self, layer: str, value: Tensor) -> Tensor:
        """Return an embedding, or a head, with the trained rows of new tokens, in fp32."""
        import torch

        ids = torch.tensor(self._lora["trainable_token_indices"][layer])
        return value.float().index_copy(0, ids, self._stored.tensor(f"{layer}{TOKENS}.default"))

    def _update(self, layer: str) -> Tensor:
        """Return LoRA's update of a layer, in fp32: scaling * B A, as peft's `merge`."""
        first, second = (self._stored.tensor(f"{layer}{part}.weight").float() for part in (A, B))
        # the product is written in the order of the weight, so that none of it is copied
        product = first.T @ second.T if self._lora["fan_in_fan_out"] else second @ first
        return product.mul_(scaling(self._lora, layer, len(first)))

    def _stretched(self, layer: str, weight: Tensor) -> Tensor:
        """Return a weight of which each output's row has the length that DoRA learned."""
        outputs, inputs = (1, 0) if self._lora["fan_in_fan_out"] else (0, 1)
        factor = self._stored.tensor(f"{layer}{MAGNITUDE}.weight") / weight.norm(dim=inputs)
        return weight.mul_(factor.unsqueeze(1 - outputs))


def _quantisation(shards: Input, model: Any) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return {layer that was quantised in training: what rounds its weight as it was there}."""
    import torch

    from trnflow.tasks.training.model.quantised import quantised_layers, rounded

    settings: Meta = shards.meta.get("settings") or {}
    kind = (settings.get("lora") or {}).get("base_dtype")
    if kind is None:
        return {}
    return dict.fromkeys(quantised_layers(model), partial(rounded, kind=kind, dtype=getattr(torch, settings["dtype"])))


def write_adapter(folder: Path, shards: Input, model: Source, trained: Weights, dtype: str, empty: Any) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json`, as `peft.PeftModel.from_pretrained` opens them. empty: the
    model on "meta"."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    wanted = getattr(torch, dtype)
    # peft reads a tied parameter by each of its names
    places = {id(parameter): name for name, parameter in empty.named_parameters()}
    others = {
        name: places[id(p)] for name, p in empty.named_parameters(remove_duplicate=False) if name not in places.values()
    }
    names = {name: name for name in trained.names}
    names |= {other: name for other, name in others.items() if name in names}
    tensors = {adapter_name(name): trained.tensor(of).to(wanted).contiguous() for name, of in names.items()}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    base = {"base_model_name_or_path": None, "revision": None}
    if "warm_start" not in model.location:  # the weights of a warm start have no name on the hub
        commit = (model.location["model"] or {}).get("commit")
        base = {"base_model_name_or_path": model.identity.get("name"), "revision": commit}
    write_json(folder / CONFIG, {**read_json(shards.path / CONFIG), **base})
