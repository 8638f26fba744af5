"""Pack token rows into chunks of few static lengths, which are the only sequence lengths anywhere downstream.

- pad: a chunk a row, all of `chunk_length`. bucket: a chunk a row, of the shortest of a few lengths that holds it.
- bfd: best fit decreasing over the whole split; rows never cut.
- concat: the tutorials' way, rows one after another and cut; the tail is padded.

Rows in one chunk have segment ids from 1 and positions from 0, so that attention can keep them apart. `labels` stand at
their own token (the loss shifts them); the first token of a row is never supervised, nothing before it predicts it.
Every token is in one chunk exactly, but for what would teach nothing, counted as `left_out`: what `split` cuts from a row
and holds no supervised token, and concat's chunks that hold none.
Memory: a block of chunks (60 MiB) and 100 bytes a row. Fails with DataError for an overlong row when
`overlong` is "error".
"""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import PositiveInt, field_validator

from tasks.artifact import Input, Meta
from tasks.chunks import chunk_file, shapes
from tasks.config import StageConfig, keyed_params
from tasks.errors import ConfigError, DataError
from tasks.stage import Part, Workdir, stage
from tasks.text.blocks import IGNORED, fill, load_layout, part_of, save_layout
from tasks.text.chunk_writer import create_columns
from tasks.text.packers import (
    ALIGN,
    Layout,
    Pieces,
    best_fit,
    bucket_lengths,
    concatenated,
    cut_rows,
    one_each,
    trained_on,
    whole_rows,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_TOKENS = 1 << 20


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
    """tokens -> `<split>/<length>.arrow` with columns input_ids, segment_ids, position_ids, int32 [chunks, length], and labels,
    int32 [chunks] for classification, else [chunks, length], -100 where not supervised (`tasks.chunks`); `tokenizer/`.

    meta: the tokens', and lengths (ascending), rows {split: {"<length>": chunks}} (lengths with none left out),
    real_tokens, supervised_tokens, left_out {split: n} (all tokens), strategy, cut {split: rows}."""
    _check(config, tokens.meta)
    splits = {split: _fitting(split, config, tokens) for split in tokens.meta["splits"]}
    lengths = _lengths(config, splits)
    packed = {split: _pack_split(split, fitting, lengths, config, tokens, out) for split, fitting in splits.items()}
    shutil.copytree(tokens.path / "tokenizer", out.path / "tokenizer", copy_function=shutil.copyfile)
    efficiency = {split: _efficiency(item) for split, item in packed.items()}
    dropped = sum(item.dropped for item in splits.values())
    left_out = {split: item.tokens - packed[split].real for split, item in splits.items()}
    if dropped:
        out.info(f"rows longer than {lengths[-1]} tokens dropped: {dropped}")
    if any(left_out.values()):
        out.warn(f"tokens left out, in parts of rows with nothing to train on: {sum(left_out.values())}")
    return {
        **tokens.meta,
        "lengths": lengths,
        "rows": {split: item.rows for split, item in packed.items()},
        "real_tokens": {split: item.real for split, item in packed.items()},
        "supervised_tokens": {split: item.supervised for split, item in packed.items()},
        "left_out": left_out,
        "strategy": config.strategy,
        "cut": {split: item.cut for split, item in splits.items()},
        "dropped": {**tokens.meta["dropped"], **({"too_long_to_pack": dropped} if dropped else {})},
        "metrics": {"chunks": sum(packed["train"].rows.values()), "efficiency": efficiency["train"]},
    }


class Fitting(NamedTuple):
    """A split's rows after those too long were cut or dropped, both counted in rows. tokens: of those that were not dropped,
    also the ones whose pieces were left out since they teach nothing."""

    pieces: Pieces
    tokens: int
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
    if not len(pieces.size):
        raise DataError(f"the split {split} has no rows", "give it rows, or leave it out: data.split")
    too_long = pieces.size > most
    count = int(too_long.sum())
    if count == 0 or config.strategy == "concat":
        return _teaching(split, pieces, tokens)
    if config.overlong == "error":
        raise _too_long(split, pieces, most, config, tokens.meta)
    if config.overlong == "split":
        return _teaching(split, cut_rows(pieces, most), tokens)._replace(cut=count)
    if count == len(too_long):
        raise DataError(f"the split {split} is empty: all its rows are longer than {most}", f"raise {_limit(config)}")
    return _teaching(split, pieces.where(~too_long), tokens)._replace(dropped=count)


def _teaching(split: str, pieces: Pieces, tokens: Input) -> Fitting:
    """Without the pieces of causal texts in which nothing is trained on."""
    total = int(pieces.size.sum())
    if tokens.meta["task"] == "causal_lm":
        pieces = pieces.where(trained_on(pieces, _loss_mask(split, tokens)))
    if not len(pieces.size):
        raise DataError(
            f"the split {split} is empty: none of its rows has a token to train on, after its first",
            "check what format_prompts trains on, and pack.overlong",
        )
    return Fitting(pieces, total, 0, 0)


def _too_long(split: str, pieces: Pieces, most: int, config: PackConfig, meta: Meta) -> DataError:
    row = int((pieces.size > most).argmax())
    count, longest = int((pieces.size > most).sum()), int(pieces.size.max())
    instead = "drop" if meta["task"] == "classification" else "split or drop"
    return DataError(
        f"split {split} row {row + 1}: {pieces.size[row]} tokens don't fit a chunk of {most} ({count} such rows)",
        f"raise {_limit(config)} to {longest}, lower tokenize.max_length to {most}, or set pack.overlong to {instead}",
    )


def _limit(config: PackConfig) -> str:
    return "the last of pack.lengths" if config.lengths else "pack.chunk_length"


def _loss_mask(split: str, tokens: Input) -> Array:
    import numpy as np

    mask: Array = np.load(tokens.path / split / "loss_mask.npy", mmap_mode="r")
    return mask


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
        layout = _layout(split, pieces, length, config, tokens)
        supervised += _write_chunks(layout, split, length, config, tokens, out)
        rows[str(length)] = layout.chunks
        real += int(layout.pieces.size.sum())
    return Packed(rows, real, supervised)


def _layout(split: str, pieces: Pieces, length: int, config: PackConfig, tokens: Input) -> Layout:
    import numpy as np

    if config.strategy == "bfd":
        return best_fit(pieces, length)
    if config.strategy != "concat":
        return one_each(pieces)
    layout = concatenated(pieces, length)
    trained = trained_on(layout.pieces, _loss_mask(split, tokens))
    found = layout.only(np.bincount(layout.chunk, trained, minlength=layout.chunks) > 0)
    if not found.chunks:
        raise DataError(f"no chunk of {length} in the split {split} has a token to train on", "raise pack.chunk_length")
    return found


def _write_chunks(layout: Layout, split: str, length: int, config: PackConfig, tokens: Input, out: Workdir) -> int:
    """The file of one length, block by block; the number of supervised tokens (or of labelled rows)."""
    import numpy as np

    folder = out.scratch / "layout" / f"{split}-{length}"
    save_layout(layout, folder)
    inputs = {"tokens": tokens, "layout": out.share(folder, "layout")}
    columns = create_columns(chunk_file(out.path, split, length), shapes(tokens.meta["task"], layout.chunks, length))
    step, supervised = max(1, BLOCK_TOKENS // length), 0
    blocks = [(first, min(first + step, layout.chunks)) for first in range(0, layout.chunks, step)]
    parts = [_part(config, tokens, split, length, first, last) for first, last in blocks]
    with closing(out.parts(pack_block, config, inputs, parts)) as made:
        for (first, last), (here, meta) in zip(blocks, made, strict=True):
            for name, column in columns.items():
                column[first:last] = np.load(here / f"{name}.npy", mmap_mode="r")
            supervised += meta["supervised"]
            out.progress(last, layout.chunks, f"{split} chunks of {length}")
    shutil.rmtree(folder)
    return supervised


def _part(config: PackConfig, tokens: Input, split: str, length: int, first: int, last: int) -> Part:
    arguments = {"split": split, "length": length, "first": first, "last": last}
    identity = {"params": {**keyed_params(config), **arguments}, "inputs": {"tokens": tokens.digest}}
    return Part(identity, arguments)


def pack_block(config: PackConfig, tokens: Input, layout: Input, part: Meta, out: Workdir) -> Meta:
    """Chunks `first`..`last` of one split and length -> a .npy file for each column; meta: supervised."""
    import numpy as np

    source = tokens.path / part["split"]
    ids = np.load(source / "input_ids.npy", mmap_mode="r")
    causal = tokens.meta["task"] == "causal_lm"
    where = part_of(load_layout(layout.path), part["first"], part["last"])
    block = fill(
        where, part["length"], ids, _loss_mask(part["split"], tokens) if causal else None, tokens.meta["pad_id"]
    )
    if not causal:
        block["labels"] = np.load(source / "labels.npy", mmap_mode="r")[where.pieces.row]
    for name, values in block.items():
        np.save(out.path / f"{name}.npy", values)
    return {"supervised": int((block["labels"] != IGNORED).sum())}


def _efficiency(packed: Packed) -> float:
    """Real tokens over all, to 4 digits."""
    return round(packed.real / sum(int(length) * chunks for length, chunks in packed.rows.items()), 4)
