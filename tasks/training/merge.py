"""Whole weights of a training that kept only what it trained: the base model's, with that put in.

LoRA's update is added by peft's own `merge`, in fp32. Costs one copy of the base model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tasks.artifact import Input, Source
from tasks.errors import ModelError
from tasks.stage import read_json, write_json
from tasks.training.lora import BASE, CONFIG, A, B, published
from tasks.training.names import PARAMETER
from tasks.training.pretrained import auto_class, load_pretrained, options_of
from tasks.training.warm_start import load_start

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.checkpoint import Reader


class Weights(Protocol):
    """Of a whole model, in fp32, by the names that transformers gives them."""

    @property
    def names(self) -> list[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def tensor(self, name: str) -> Tensor: ...


class Stored:
    """Those of a checkpoint that holds all."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def names(self) -> list[str]:
        return [name.removeprefix(PARAMETER) for name in self._reader.names]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._reader.shape(PARAMETER + name)

    def tensor(self, name: str) -> Tensor:
        return self._reader.tensor(PARAMETER + name)


class Merged:
    """Those of `model.source`, the trained ones in their place or added to theirs."""

    def __init__(self, shards: Input, model: Source, stored: Stored) -> None:
        trained = _base(shards, model)
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


def write_adapter(folder: Path, shards: Input, model: Source, trained: Stored, dtype: str) -> None:
    """`adapter_model.safetensors` and `adapter_config.json`, which `peft.PeftModel.from_pretrained` puts on the base model; it
    names the base model when that has a name on the hub."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    wanted = getattr(torch, dtype)
    tensors = {published(name): trained.tensor(name).to(wanted).contiguous() for name in trained.names}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    at = model.location["model"] or {}
    base = {"base_model_name_or_path": at.get("repo"), "revision": at.get("commit")}
    write_json(folder / CONFIG, {**read_json(shards.path / CONFIG), **base})


def _base(shards: Input, model: Source) -> Any:
    """The base model with peft's layers in it, if it was trained with any."""
    from transformers import AutoConfig

    options = options_of(model)
    config = AutoConfig.from_pretrained(shards.path, trust_remote_code=options["trust_remote_code"])
    if model.identity["weights"] is None:
        found = auto_class(shards.meta["task"]).from_config(config, **options)
        load_start(model, found)
    else:
        found, _ = load_pretrained(shards.meta["task"], config, model, **options)
    if (shards.path / CONFIG).exists():
        import peft

        settings = peft.LoraConfig.from_pretrained(str(shards.path))
        settings.modules_to_save = None  # a head is filled where it stands
        peft.inject_adapter_in_model(settings, found)
    return found


def _fill(model: Any, trained: Stored) -> None:
    import torch

    parameters = dict(model.named_parameters())
    for name in trained.names:
        if name not in parameters:
            raise ModelError(
                f"{name} was trained, and {type(model).__name__} as it is now read from model.source has no such parameter",
                "run train again: its checkpoint is of another architecture",
            )
        with torch.no_grad():
            parameters[name].copy_(trained.tensor(name))


def _merge(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "lora_A"):
            module.merge()
