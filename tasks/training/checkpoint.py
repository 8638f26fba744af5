"""Tensors in safetensors shards with an index of slices, and the training state beside them.

A shard file per device that writes, by whichever process drives it; a tensor's replicas are written once. `index.json`:
{"tensors": {name: {"shape", "slices": [{"file", "start"}]}}, "state": {...}}. Reading puts the slices together, whatever
the mesh that wrote them, one tensor in memory at a time. Equal tensors give equal bytes, those of safetensors' own
`save_file`; but they are written without holding the interpreter, so that training goes on beside it, and hashed a piece at a
time while it is in the processor's cache: half the work of writing a file and reading it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.artifact import Meta
from tasks.errors import ModelError
from tasks.stage import read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.engine import Box

INDEX = "index.json"
PIECE = 1 << 19  # bytes

# as safetensors names them, and in the order in which it writes them: wide types first, so that each tensor is aligned
DTYPES = {
    "int64": "I64", "float64": "F64", "float32": "F32", "int32": "I32", "bfloat16": "BF16", "float16": "F16",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def write(
    folder: Path,
    boxes: Iterable[Box],
    state: Meta,
    gather: Callable[[Meta], list[Meta] | None] = lambda mine: [mine],
) -> None:
    """Write `boxes` below `folder`, and the index last. gather: of several processes that write together, what each has
    written; None for those that leave the index to another."""
    written = gather(write_shards(folder, boxes))
    if written is not None:
        write_index(folder, written, state)


def write_shards(folder: Path, boxes: Iterable[Box]) -> Meta:
    """Write the shards of `boxes`. Returns {"tensors": their part of the index, "digests": {file: sha256:...}}."""
    shards: dict[str, dict[str, Tensor]] = {}
    tensors: Meta = {}
    for box in boxes:
        file = shard_file(folder, box.device).name
        shards.setdefault(file, {})[box.name] = box.value.contiguous()
        entry = tensors.setdefault(box.name, {"shape": list(box.whole), "slices": []})
        entry["slices"].append({"file": file, "start": list(box.start)})
    folder.mkdir(parents=True, exist_ok=True)
    digests = {file: save_tensors(folder / file, content) for file, content in sorted(shards.items())}
    return {"tensors": tensors, "digests": digests}


def write_index(folder: Path, written: list[Meta], state: Meta) -> None:
    """written: what `write_shards` returned in each process."""
    write_json(folder / INDEX, {"tensors": _merged([one["tensors"] for one in written]), "state": state})


def shard_file(folder: Path, device: int) -> Path:
    return folder / f"shard-{device:05d}.safetensors"


def save_tensors(file: Path, tensors: Mapping[str, Tensor]) -> str:
    """tensors: contiguous, on the CPU. Returns `sha256:<hex>` of the file. OSError when the disk does not take it; half of it
    may be left then."""
    digest = hashlib.sha256()
    with file.open("wb") as handle:
        for piece in _pieces(tensors):
            digest.update(piece)
            handle.write(piece)
    return f"sha256:{digest.hexdigest()}"


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The header, and the tensors' bytes in its order."""
    kinds = {name: DTYPES[str(tensor.dtype).removeprefix("torch.")] for name, tensor in tensors.items()}
    ordered = sorted(tensors, key=lambda name: (list(DTYPES.values()).index(kinds[name]), name))
    header: Meta = {}
    end = 0
    for name in ordered:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {"dtype": kinds[name], "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in ordered:
        data = _bytes(tensors[name])
        yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))


def _bytes(tensor: Tensor) -> memoryview:
    """Without a copy."""
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


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

    def check_model(self, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """ModelError, with the first that differs, unless the tensors under `prefix` have just these names and shapes."""
        held = {name.removeprefix(prefix): self.shape(name) for name in self.names if name.startswith(prefix)}
        for name in sorted(held.keys() | shapes.keys()):
            mine, wanted = held.get(name), shapes.get(name)
            if mine != wanted:
                raise ModelError(
                    f"the checkpoint {self._folder} is of another model: its {name} {_told(mine)}, and this model's "
                    f"{_told(wanted)}",
                    "remove it to train from the start",
                )


def _told(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has shape {list(shape)}"
