"""Give each row of a language model's tokens a second document: its prompt with another row's answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.tokenization.arrays import GrowingArray
from trnflow.tasks.data.tokenization.word_encoder import gather
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import numpy as np

    Longs = np.ndarray[Any, np.dtype[np.int64]]

BLOCK = 1 << 14
"""Rows that are written at once; bounds memory."""
FILES = {"input_ids.npy": "<i4", "loss_mask.npy": "|u1"}


def add_mismatched(folder: Path, types_file: str, most: int) -> tuple[int, int]:
    """Rewrite a split's tokens, so that each row is two documents of types 0 and 1.

    The whole split is one group, in which answers move on by one row: batches, meshes and passes do not change the texts.

    most: tokens of a document. Returns (tokens, tokens of the longest row).
    """
    import numpy as np

    offsets = load_array(folder / "offsets.npy")
    old = {name: load_array(folder / name, mapped=True) for name in FILES}
    learnt = np.flatnonzero(old["loss_mask.npy"])
    answer = learnt[np.searchsorted(learnt, offsets[:-1])]  # the first token of each: every row has one
    asked, given = answer - offsets[:-1], offsets[1:] - answer
    donor = donors([old["input_ids.npy"][start:end].tobytes() for start, end in zip(offsets, answer, strict=False)])
    starts = np.stack([offsets[:-1], offsets[:-1], answer[donor]], axis=1)
    sizes = np.stack([np.diff(offsets), asked, np.minimum(given[donor], most - asked)], axis=1)
    for name, dtype in FILES.items():
        with GrowingArray(folder / f"new-{name}", dtype) as file:
            for first in range(0, len(sizes), BLOCK):
                here = slice(first, first + BLOCK)
                file.append(gather(old[name], starts[here].ravel(), sizes[here].ravel()))
        (folder / f"new-{name}").replace(folder / name)
    kinds = np.tile(np.array([0, 1, 1], np.uint8), len(sizes))
    np.save(folder / types_file, np.repeat(kinds, sizes.ravel()))
    rows = sizes.sum(1)
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(rows)]))
    return int(rows.sum()), int(rows.max())


def donors(prompts: list[bytes]) -> Longs:
    """Return, for each row, the row whose answer it is given: the one before it, but not one of the same prompt."""
    import numpy as np

    seen, place = dict[bytes, int](), np.zeros(len(prompts), np.int64)
    for row, prompt in enumerate(prompts):
        place[row] = seen[prompt] = seen.get(prompt, -1) + 1
    # the first rows of all prompts, then the second ones: neighbours are of different prompts, as TRL orders unpaired pairs
    order = np.argsort(place, kind="stable")
    found = np.empty_like(order)
    found[order] = np.roll(order, 1)
    return found
