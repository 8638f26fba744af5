"""Build the weights of a whole trained model, which the stage `consolidate` writes.

They come from a checkpoint that holds all parameters, or, when only a part was trained, from the base model with the
trained parameters put in. LoRA's updates are added by peft's `merge`, in fp32. Putting parameters in takes memory for
one copy of the base model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tasks.artifact import Input, Source
from tasks.errors import ModelError
from tasks.stage import read_json, write_json
from tasks.training.checkpoint.warm_start import load_start
from tasks.training.model.lora import BASE, CONFIG, A, B, adapter_name
from tasks.training.model.pretrained import OPTIONS, auto_class, load_pretrained
from tasks.training.shared_types import PARAMETER

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.checkpoint.shards import Reader


class Weights(Protocol):
    """Interface that `CheckpointWeights` and `MergedWeights` implement: the weights of a whole model in fp32, by
    transformers' parameter names."""

    @property
    def names(self) -> list[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def tensor(self, name: str) -> Tensor: ...


class CheckpointWeights:
    """The tensors of a checkpoint of `train`, by transformers' parameter names. They are a whole model's `Weights` if
    all parameters were trained."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def names(self) -> list[str]:
        return [name.removeprefix(PARAMETER) for name in self._reader.names]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._reader.shape(PARAMETER + name)

    def tensor(self, name: str) -> Tensor:
        return self._reader.tensor(PARAMETER + name)


class MergedWeights:
    """The weights of a model of which a part was trained: the base model's, with trained parameters replaced and LoRA's
    updates added.

    Args:
        shards: the artifact of `train`.
        model: the base model.
        stored: the trained parameters in `shards`.
    """

    def __init__(self, shards: Input, model: Source, stored: CheckpointWeights) -> None:
        trained = _base_model(shards, model)
        _fill(trained, stored)
        _merge(trained)
        self._tensors: dict[str, Tensor] = {
            name.replace(f"{BASE}.", "."): parameter.detach()
            for name, parameter in trained.named_parameters()
            if not name.rpartition(".")[0].endswith((A, B))
        }

    @property
    def names(self) -> list[str]:
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]


def write_adapter(folder: Path, shards: Input, model: Source, trained: CheckpointWeights, dtype: str) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json` to the new `folder`, for
    `peft.PeftModel.from_pretrained`.

    Args:
        shards: the artifact of `train`.
        model: the base model, which the config names if the model comes from the hub.
        trained: the trained parameters.
        dtype: the type to write, such as "float32".
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    wanted = getattr(torch, dtype)
    tensors = {adapter_name(name): trained.tensor(name).to(wanted).contiguous() for name in trained.names}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    base = {"base_model_name_or_path": None, "revision": None}
    if "warm_start" not in model.location:  # the weights of a warm start have no name on the hub
        commit = (model.location["model"] or {}).get("commit")
        base = {"base_model_name_or_path": model.identity.get("name"), "revision": commit}
    write_json(folder / CONFIG, {**read_json(shards.path / CONFIG), **base})


def _base_model(shards: Input, model: Source) -> Any:
    """Return the model that training began with, with peft's layers where LoRA trained it."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(shards.path, trust_remote_code=False)
    if model.identity["weights"] is None:
        found = auto_class(shards.meta["task"]).from_config(config, **OPTIONS)
        load_start(model, found)
    else:
        found, _ = load_pretrained(shards.meta["task"], config, model, **OPTIONS)
    if (shards.path / CONFIG).exists():
        import peft

        settings = peft.LoraConfig.from_pretrained(str(shards.path))
        settings.modules_to_save = None  # the head's weights are copied into the model's own head
        peft.inject_adapter_in_model(settings, found)
    return found


def _fill(model: Any, trained: CheckpointWeights) -> None:
    import torch

    parameters = dict(model.named_parameters())
    for name in trained.names:
        if name not in parameters:
            raise ModelError(
                f"{name} was trained, and {type(model).__name__} as read from model.source now has no such parameter",
                "run train again: its checkpoint is of another architecture",
            )
        with torch.no_grad():
            parameters[name].copy_(trained.tensor(name))


def _merge(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "lora_A"):
            module.merge()
