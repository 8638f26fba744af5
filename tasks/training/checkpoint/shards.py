"""Write and read checkpoints: safetensors shards, one a device, and an index of slices.

`index.json`: {"tensors": {name: {"shape", "slices": [{"file", "start"}]}}, "state"}. `Reader` joins slices, one tensor
in memory at a time, so any mesh can read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from trnflow.tasks.training.shared_types import TensorSlice

INDEX = "index.json"
REMOVE = "remove it to train from the start"
PIECE = 1 << 19  # bytes hashed and written at a time

# safetensors' names, in its order: wide types first, so that each tensor is aligned
DTYPES = {
    "int64": "I64", "float64": "F64", "float32": "F32", "int32": "I32", "bfloat16": "BF16", "float16": "F16",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def write(
    folder: Path,
    slices: Iterable[TensorSlice],
    state: Meta,
    gather: Callable[[Meta], list[Meta] | None] = lambda mine: [mine],
) -> None:
    """Write a checkpoint. gather: gets a `write_shards`; returns all processes', None where no index is written."""
    written = gather(write_shards(folder, slices))
    if written is not None:
        write_index(folder, written, state)


def write_shards(folder: Path, slices: Iterable[TensorSlice]) -> Meta:
    """Write slices to shards, one a device. Return {"tensors": entries of the index, "digests": {shard: digest}}."""
    shards: dict[str, dict[str, Tensor]] = {}
    tensors: Meta = {}
    for part in slices:
        file = shard_file(folder, part.device).name
        shards.setdefault(file, {})[part.name] = part.value.contiguous()
        entry = tensors.setdefault(part.name, {"shape": list(part.whole), "slices": []})
        entry["slices"].append({"file": file, "start": list(part.start)})
    folder.mkdir(parents=True, exist_ok=True)
    digests = {file: save_tensors(folder / file, content) for file, content in sorted(shards.items())}
    return {"tensors": tensors, "digests": digests}


def write_index(folder: Path, written: list[Meta], state: Meta) -> None:
    """Write `index.json`. written: of `write_shards`, one a process; state: progress as JSON."""
    write_json(folder / INDEX, {"tensors": _merge_entries([process["tensors"] for process in written]), "state": state})


def shard_file(folder: Path, device: int) -> Path:
    return folder / f"shard-{device:05d}.safetensors"


def save_tensors(file: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write contiguous CPU tensors as safetensors and return the digest. After an OSError an incomplete file may stay."""
    digest = hashlib.sha256()
    with file.open("wb") as handle:
        for piece in _pieces(tensors):
            digest.update(piece)
            handle.write(piece)
    return f"sha256:{digest.hexdigest()}"


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the file's header, then the tensors' bytes in the header's order."""
    import torch

    kinds = {name: DTYPES[str(tensor.dtype).removeprefix("torch.")] for name, tensor in tensors.items()}
    ordered = sorted(tensors, key=lambda name: (list(DTYPES.values()).index(kinds[name]), name))
    yield safetensors_header((name, kinds[name], tensors[name].shape, tensors[name].nbytes) for name in ordered)
    for name in ordered:
        flat = tensors[name].detach().reshape(-1)
        # of one element the stride may be 0, with which PyTorch refuses another view
        data = flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data
        yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))


def safetensors_header(tensors: Iterable[tuple[str, str, Sequence[int], int]], **more: Meta) -> bytes:
    """Return the beginning of a safetensors file. tensors: (name, dtype in safetensors' words, shape, bytes)."""
    header: Meta = dict(more)
    end = 0
    for name, kind, shape, size in tensors:
        begin, end = end, end + size
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _merge_entries(written: list[Meta]) -> Meta:
    tensors, *others = written
    for other in others:
        for name, entry in other.items():
            tensors.setdefault(name, {**entry, "slices": []})["slices"].extend(entry["slices"])
    return tensors


class Reader:
    """Reads a checkpoint of any mesh.

    prefix: only of tensors whose names begin so, such as "parameter/"; their names are without it. Attributes: `names`,
    sorted; `state`, progress as JSON, {} if none was saved.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        index = read_json(folder / INDEX)
        self._folder, self._prefix = folder, prefix
        self._tensors: Meta = index["tensors"]
        self.names = sorted(name.removeprefix(prefix) for name in self._tensors if name.startswith(prefix))
        self.state: Meta = index["state"]

    def has(self, name: str) -> bool:
        """Return whether the checkpoint holds the tensor `name`."""
        return self._prefix + name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor `name`. Raises ModelError when it is missing."""
        if not self.has(name):
            raise ModelError(f"the checkpoint {self._folder} holds no tensor {name}", REMOVE)
        return tuple(self._tensors[self._prefix + name]["shape"])

    def tensor(self, name: str) -> Tensor:
        """Return a whole tensor, on the CPU. Raises ModelError when it or a part is missing."""
        return self.part(name, tuple(slice(0, size) for size in self.shape(name)))

    def part(self, name: str, at: tuple[slice, ...]) -> Tensor:
        """Return the elements `at` of a tensor, as `tensor`; of its slices only what is among them is read."""
        import torch

        joined: Tensor | None = None
        filled = 0
        for stored in self._tensors[self._prefix + name]["slices"]:
            value, place = self._common(stored, name, at)
            joined = (
                torch.empty([index.stop - index.start for index in at], dtype=value.dtype) if joined is None else joined
            )
            joined[place] = value
            filled += value.numel()
        if joined is None or filled != joined.numel():
            raise ModelError(f"the slices of {name} in {self._folder} are incomplete", REMOVE)
        return joined

    def _common(self, stored: Meta, name: str, at: tuple[slice, ...]) -> tuple[Tensor, tuple[slice, ...]]:
        """Return which of the elements `at` a stored slice holds, and where among them they lie."""
        from safetensors import SafetensorError, safe_open

        file, start, whole = stored["file"], stored["start"], self.shape(name)
        try:
            with safe_open(self._folder / file, framework="pt") as shard:
                held = shard.get_slice(self._prefix + name)
                shape = held.get_shape()
                if len(shape) != len(whole) or any(map(lambda at, n, all: at + n > all, start, shape, whole)):
                    raise ModelError(
                        f"{file} in {self._folder} is of another checkpoint: its {name} has shape {shape}", REMOVE
                    )
                # an empty overlap is sliced too: it reads nothing, and gives the dtype
                common = [_overlap(wanted, begin, size) for wanted, begin, size in zip(at, start, shape, strict=True)]
                value: Tensor = held[_moved(common, start)]
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} in {self._folder} gives no {name}: {error}", REMOVE) from error
        return value, _moved(common, [wanted.start for wanted in at])

    def check_model(self, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ModelError unless the tensors with `prefix` have exactly these names and shapes."""
        held = {name.removeprefix(prefix): self.shape(name) for name in self.names if name.startswith(prefix)}
        for name in sorted(held.keys() | shapes.keys()):
            mine, wanted = held.get(name), shapes.get(name)
            if mine != wanted:
                raise ModelError(
                    f"the checkpoint {self._folder} is of another model: its {name} {_shape_text(mine)}, and this model's "
                    f"{_shape_text(wanted)}",
                    REMOVE,
                )


def _overlap(wanted: slice, start: int, size: int) -> slice:
    """Return the indices of `wanted` that lie in the `size` from `start` on."""
    first = max(wanted.start, start)
    return slice(first, max(first, min(wanted.stop, start + size)))


def _moved(at: Sequence[slice], starts: Sequence[int]) -> tuple[slice, ...]:
    """Return the indices counted from `starts`."""
    return tuple(slice(index.start - begin, index.stop - begin) for index, begin in zip(at, starts, strict=True))


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has shape {list(shape)}"
