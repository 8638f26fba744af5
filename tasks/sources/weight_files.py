"""The safetensors files of a model's folder, and their headers, read without a library: no tensor is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER = 16 << 20
"""Most bytes of a file's header: of DeepSeek-V3's 92,000 tensors all headers together have about 10 MB."""
HEADERS = 64 << 20
"""Most bytes of all files' headers together."""
LONGEST = 255
"""Most bytes of a file's name."""
LISTED = 32 << 20
"""Most bytes of the list of files: of DeepSeek-V3 it has 9 MB."""
TENSORS = 1_000_000
"""Most tensors of a model."""

VALUES = 2_000_000
"""The most values of a document from elsewhere: of a million tensors a model's list of files has as many."""


def parse_small(data: bytes) -> Any:
    """Parse JSON from elsewhere. Raises ValueError, also for more than VALUES values: 3 bytes become an empty list of 64."""
    # those in texts are counted, too
    if sum(map(data.count, (b",", b"[", b"{"))) > VALUES:
        raise ValueError(f"it has more than {VALUES:,} values")
    return json.loads(data)


def weight_files(folder: Path) -> list[Path]:
    """Return `model.safetensors`, else the index's files, sorted. Raises ModelError."""
    whole, index = folder / WHOLE, folder / INDEX
    if whole.is_file():
        return [whole]
    if not index.is_file():
        raise ModelError(f"{folder} holds no model.safetensors", "save the model anew, as safetensors")
    files = [folder / name for name in _listed(index)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ModelError(f"{index.name} names {missing[0]}, which is not there", "save or download the model anew")
    return files


def _listed(index: Path) -> list[str]:
    """Return the names of the files that an index lists, sorted. Raises ModelError for what is no index."""
    try:
        if index.stat().st_size > LISTED:
            raise ValueError(f"it has more than {LISTED >> 20} MiB")
        names = sorted({*parse_small(index.read_bytes())["weight_map"].values()})
        if elsewhere := [name for name in names if Path(name).name != name or len(os.fsencode(name)) > LONGEST]:
            raise ValueError(f"{elsewhere[0][:LONGEST]} is no name of a file")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} is no list of files: {error}", "save or download the model anew") from error
    return names


def shapes_in(folder: Path) -> dict[str, list[int]]:
    """Return {name of a tensor: its shape} of a folder's weights. Raises ModelError for files that can't be read."""
    shapes: dict[str, list[int]] = {}
    left = HEADERS  # thousands of names may be links to one file
    for file in weight_files(folder):
        header, size = _header(file, min(HEADER, left))
        left -= size
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
        if len(shapes) > TENSORS:
            raise ModelError(f"the weights in {folder} have more than {TENSORS:,} tensors", "save the model anew")
    return shapes


def _header(file: Path, most: int) -> tuple[Meta, int]:
    """Return a safetensors file's header, and its bytes, at most `most`. Raises ModelError for one that is broken."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > most:
                many = f"the headers of all files have more than {HEADERS >> 20} MiB"
                raise ValueError(f"its header has {size:,} bytes" if size > HEADER else many)
            header: Meta = parse_small(opened.read(size))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
        if not all(isinstance(size, int) and size >= 0 for entry in tensors for size in entry["shape"]):
            raise ValueError("a shape is no list of whole numbers")
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file} can't be read as safetensors: {error}", "save or download the model anew") from error
    held = file.stat().st_size - 8 - size
    if end > held:
        raise ModelError(f"{file} is cut off: it holds {held:,} bytes of {end:,}", "download the model anew")
    return header, size
