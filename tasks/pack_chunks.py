"""Pack token rows into chunks of few static lengths, which are the only sequence lengths anywhere downstream.

- pad: a chunk a row, all of `chunk_length`. bucket: a chunk a row, of the shortest of a few lengths that holds it.
- bfd: best fit decreasing over the whole split; every token exactly once, rows never cut.
- concat: the tutorials' way, rows one after another and cut; the tail is padded, so no token is lost.

Rows in one chunk have segment ids from 1 and positions from 0, so that attention can keep them apart. `labels` stand at
their own token (the loss shifts them); the first token of a row is never supervised, nothing before it predicts it.
Memory: a block of chunks. Fails with DataError for an overlong row when `overlong` is "error".
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import PositiveInt, field_validator

from tasks.artifact import Input, Meta
from tasks.config import StageConfig
from tasks.errors import ConfigError, DataError
from tasks.stage import Workdir, stage
from tasks.text.packers import (
    ALIGN,
    Layout,
    Pieces,
    best_fit,
    bucket_lengths,
    concatenated,
    cut_rows,
    one_each,
    whole_rows,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_TOKENS = 1 << 22
IGNORED = -100
_COLUMNS = ("input_ids", "labels", "segment_ids", "position_ids")


class PackConfig(StageConfig):
    """chunk_length: tokens a chunk, and the longest bucket; lengths: the buckets, ascending (found from the train split
    when not given); buckets: how many to find at most; overlong: rows longer than the longest chunk.

    Buckets are chosen on train alone. When another split has a longer row than train, one more length is added to hold
    it, and nothing else about that split is looked at."""

    strategy: Literal["pad", "bucket", "concat", "bfd"] = "bfd"
    chunk_length: PositiveInt = 512
    lengths: tuple[PositiveInt, ...] | None = None
    buckets: PositiveInt = 4
    overlong: Literal["split", "drop", "error"] = "error"

    @field_validator("lengths")
    @classmethod
    def _ascending(cls, lengths: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if lengths is not None and (not lengths or list(lengths) != sorted(set(lengths))):
            raise ValueError("lengths must ascend, each once")
        return lengths


@stage(kind="packed")
def pack_chunks(config: PackConfig, tokens: Input, out: Workdir) -> Meta:
    """tokens -> `<split>/<length>/{input_ids,segment_ids,position_ids}.npy` int32 [chunks, length] and `labels.npy`,
    int32 [chunks] for classification, else [chunks, length], -100 where not supervised; `tokenizer/`.

    meta: the tokens', and lengths (ascending), rows {split: {"<length>": chunks}} (lengths with none left out),
    real_tokens, supervised_tokens {split: n}, strategy, cut {split: rows}."""
    _check(config, tokens.meta)
    splits = {split: _fitting(split, config, tokens) for split in tokens.meta["splits"]}
    lengths = _lengths(config, splits)
    packed = {split: _pack_split(split, fitting, lengths, config, tokens, out) for split, fitting in splits.items()}
    shutil.copytree(tokens.path / "tokenizer", out.path / "tokenizer", copy_function=shutil.copyfile)
    efficiency = {split: _efficiency(item) for split, item in packed.items()}
    dropped = sum(item.dropped for item in splits.values())
    if dropped:
        out.info(f"rows longer than {lengths[-1]} tokens dropped: {dropped}")
    return {
        **tokens.meta,
        "lengths": lengths,
        "rows": {split: item.rows for split, item in packed.items()},
        "real_tokens": {split: item.real for split, item in packed.items()},
        "supervised_tokens": {split: item.supervised for split, item in packed.items()},
        "strategy": config.strategy,
        "cut": {split: item.cut for split, item in splits.items()},
        "dropped": {**tokens.meta["dropped"], **({"too_long_to_pack": dropped} if dropped else {})},
        "metrics": {"chunks": sum(packed["train"].rows.values()), "efficiency": efficiency["train"]},
    }


class Fitting(NamedTuple):
    """A split's rows after those too long were cut or dropped, both counted in rows."""

    pieces: Pieces
    cut: int
    dropped: int


class Packed(NamedTuple):
    """rows: {"<length>": chunks}; real: tokens that are no padding; supervised: those with a label, or labelled rows."""

    rows: dict[str, int]
    real: int
    supervised: int


def _check(config: PackConfig, meta: Meta) -> None:
    classify = meta["task"] == "classification"
    if classify and config.strategy in ("concat", "bfd"):
        raise ConfigError(
            f"pack.strategy: {config.strategy} puts several rows in a chunk, but classification labels a row",
            "use bucket or pad",
        )
    if classify and config.overlong == "split":
        raise ConfigError("pack.overlong: a classified row can't be split", "use tokenize.overlong=truncate, or drop")
    if config.lengths and config.strategy != "bucket":
        raise ConfigError(
            f"pack.lengths are buckets, and pack.strategy is {config.strategy}", "set pack.strategy=bucket"
        )
    if config.lengths and config.lengths[-1] > config.chunk_length:
        raise ConfigError(
            f"pack.lengths: {config.lengths[-1]} is longer than pack.chunk_length {config.chunk_length}",
            "raise pack.chunk_length",
        )


def _fitting(split: str, config: PackConfig, tokens: Input) -> Fitting:
    import numpy as np

    most = config.lengths[-1] if config.lengths else config.chunk_length
    pieces = whole_rows(np.load(tokens.path / split / "offsets.npy"))
    too_long = pieces.size > most
    count = int(too_long.sum())
    if count == 0 or config.strategy == "concat":
        return Fitting(pieces, 0, 0)
    if config.overlong == "error":
        row = int(np.argmax(too_long))
        raise DataError(
            f"split {split} row {row + 1}: {pieces.size[row]} tokens don't fit a chunk of {most} ({count} such rows)",
            f"set pack.chunk_length to {tokens.meta['longest']}, tokenize.max_length to {most}, or pack.overlong",
        )
    if config.overlong == "split":
        return Fitting(cut_rows(pieces, most), count, 0)
    if count == len(too_long):
        raise DataError(f"the split {split} is empty: all its rows are longer than {most}", "raise pack.chunk_length")
    return Fitting(pieces.where(~too_long), 0, count)


def _lengths(config: PackConfig, splits: dict[str, Fitting]) -> list[int]:
    if config.strategy != "bucket":
        return [config.chunk_length]
    if config.lengths:
        return list(config.lengths)
    lengths = bucket_lengths(splits["train"].pieces.size, config.chunk_length, config.buckets)
    longest = max(int(item.pieces.size.max()) for item in splits.values())
    if longest > lengths[-1]:
        lengths.append(min(-(-longest // ALIGN) * ALIGN, config.chunk_length))
    return lengths


def _pack_split(
    split: str, fitting: Fitting, lengths: list[int], config: PackConfig, tokens: Input, out: Workdir
) -> Packed:
    import numpy as np

    bucket = np.searchsorted(np.array(lengths), fitting.pieces.size)
    rows, real, supervised = {}, 0, 0
    for index, length in enumerate(lengths):
        pieces = fitting.pieces if len(lengths) == 1 else fitting.pieces.where(bucket == index)
        if len(pieces.size) == 0:
            continue
        layout = _layout(config.strategy, pieces, length)
        supervised += _write_chunks(layout, split, length, tokens, out)
        rows[str(length)] = layout.chunks
        real += int(pieces.size.sum())
    return Packed(rows, real, supervised)


def _layout(strategy: str, pieces: Pieces, length: int) -> Layout:
    if strategy == "bfd":
        return best_fit(pieces, length)
    return concatenated(pieces, length) if strategy == "concat" else one_each(pieces)


def _write_chunks(layout: Layout, split: str, length: int, tokens: Input, out: Workdir) -> int:
    """The arrays of one length, block by block; the number of supervised tokens (or of labelled rows)."""
    import numpy as np

    causal = tokens.meta["task"] == "causal_lm"
    source, folder = tokens.path / split, out.path / split / str(length)
    folder.mkdir(parents=True)
    ids = np.load(source / "input_ids.npy", mmap_mode="r")
    mask = np.load(source / "loss_mask.npy", mmap_mode="r") if causal else None
    names = _COLUMNS if causal else tuple(name for name in _COLUMNS if name != "labels")
    files = {name: _new_array(folder / f"{name}.npy", (layout.chunks, length)) for name in names}
    supervised, step = 0, max(1, BLOCK_TOKENS // length)
    for first in range(0, layout.chunks, step):
        last = min(first + step, layout.chunks)
        block = _block(layout, first, last, length, ids, mask, tokens.meta["pad_id"])
        for name, file in files.items():
            file[first:last] = block[name]
        supervised += int((block["labels"] != IGNORED).sum()) if causal else 0
        out.progress(last, layout.chunks, f"{split} chunks of {length}")
    if not causal:
        labels = np.load(source / "labels.npy")[layout.pieces.row]
        np.save(folder / "labels.npy", labels, allow_pickle=False)
        return len(labels)
    return supervised


def _new_array(path: Path, shape: tuple[int, int]) -> Array:
    from numpy.lib.format import open_memmap

    return open_memmap(path, mode="w+", dtype="<i4", shape=shape)


def _block(
    layout: Layout, first: int, last: int, length: int, ids: Array, mask: Array | None, pad_id: int
) -> dict[str, Array]:
    """Chunks first..last of each column, int32 [chunks, length]."""
    import numpy as np

    here = slice(*np.searchsorted(layout.chunk, (first, last)))
    size, chunk = layout.pieces.size[here], layout.chunk[here]
    position = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    at = np.repeat((chunk - first) * length + layout.offset[here], size) + position
    source = np.repeat(layout.pieces.start[here], size) + position
    opens = np.searchsorted(chunk, chunk)  # the first piece of each piece's chunk
    values = {
        "input_ids": (ids[source], pad_id),
        "segment_ids": (np.repeat(np.arange(len(chunk)) - opens + 1, size), 0),
        "position_ids": (position, 0),
    }
    if mask is not None:
        supervised = (mask[source] == 1) & (position > 0)
        values["labels"] = (np.where(supervised, values["input_ids"][0], IGNORED), IGNORED)
    block = {}
    for name, (filled, padding) in values.items():
        flat = np.full((last - first) * length, padding, dtype=np.int32)
        flat[at] = filled
        block[name] = flat.reshape(last - first, length)
    return block


def _efficiency(packed: Packed) -> float:
    """Real tokens over all, to 4 digits."""
    return round(packed.real / sum(int(length) * chunks for length, chunks in packed.rows.items()), 4)
