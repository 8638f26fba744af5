"""Tensors in safetensors shards with an index of slices, and the training state beside them.

A shard file per device that writes, by whichever process drives it; a tensor's replicas are written once. `index.json`:
{"tensors": {name: {"shape", "slices": [{"file", "start"}]}}, "state": {...}}. Reading puts the slices together, whatever
the mesh that wrote them, one tensor in memory at a time; writing holds one copy of all on the host. Equal tensors give
equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.artifact import Meta
from tasks.errors import ModelError
from tasks.stage import read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.engine import Box

INDEX = "index.json"


def write(
    folder: Path,
    boxes: Iterable[Box],
    state: Meta,
    gather: Callable[[Meta], list[Meta] | None] = lambda mine: [mine],
) -> None:
    """Write `boxes` below `folder`, and the index last. gather: of several processes that write together, what each has
    written; None for those that leave the index to another."""
    from safetensors.torch import save_file

    shards: dict[str, dict[str, Tensor]] = {}
    tensors: Meta = {}
    for box in boxes:
        file = f"shard-{box.device:05d}.safetensors"
        shards.setdefault(file, {})[box.name] = box.value.contiguous()
        entry = tensors.setdefault(box.name, {"shape": list(box.whole), "slices": []})
        entry["slices"].append({"file": file, "start": list(box.start)})
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in sorted(shards.items()):
        save_file(content, folder / file)
    written = gather(tensors)
    if written is not None:
        write_json(folder / INDEX, {"tensors": _merged(written), "state": state})


def _merged(written: list[Meta]) -> Meta:
    tensors, *others = written
    for other in others:
        for name, entry in other.items():
            tensors.setdefault(name, {**entry, "slices": []})["slices"].extend(entry["slices"])
    return tensors


class Reader:
    """A folder that `write` made. state: as it was given."""

    def __init__(self, folder: Path) -> None:
        index = read_json(folder / INDEX)
        self._folder = folder
        self._tensors: Meta = index["tensors"]
        self.state: Meta = index["state"]

    @property
    def names(self) -> list[str]:
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name]["shape"])

    def tensor(self, name: str) -> Tensor:
        """The whole tensor, on the CPU. ModelError when the checkpoint lacks it, or a part of it."""
        import torch
        from safetensors import safe_open

        if name not in self._tensors:
            raise ModelError(
                f"the checkpoint {self._folder} holds no tensor {name}", "remove it to train from the start"
            )
        whole: Tensor | None = None
        filled = 0
        for part in self._tensors[name]["slices"]:
            with safe_open(self._folder / part["file"], framework="pt") as shard:
                value: Tensor = shard.get_tensor(name)
            whole = torch.empty(self.shape(name), dtype=value.dtype) if whole is None else whole
            box = tuple(slice(at, at + size) for at, size in zip(part["start"], value.shape, strict=True))
            whole[box] = value
            filled += value.numel()
        if whole is None or filled != whole.numel():
            raise ModelError(
                f"the slices of {name} in {self._folder} do not make it whole", "remove it to train from the start"
            )
        return whole
