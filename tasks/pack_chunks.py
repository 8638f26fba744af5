"""Pack token rows into chunks of a few fixed lengths, the only sequence lengths of all later stages.

Segments have ids from 1 and positions from 0. Every token is in exactly one chunk, except pieces and concat's chunks
with nothing to train on (`left_out`). Takes 60 MiB and 100 bytes a row. Raises DataError.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import field_validator

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import PositiveCount, StageConfig, Tokens, keyed_params
from trnflow.tasks.data.chunks import SEGMENTS, chunk_file, marks_file, segments_file, shapes
from trnflow.tasks.data.pack.chunk_columns import IGNORED, fill, load_layout, part_of, save_layout
from trnflow.tasks.data.pack.chunk_writer import create_columns
from trnflow.tasks.data.pack.packers import (
    ALIGN,
    ChunkLayout,
    Pieces,
    best_fit,
    bucket_lengths,
    concatenated,
    cut_rows,
    one_each,
    trained_on,
    whole_rows,
)
from trnflow.tasks.data.texts import TYPES_FILE, in_order
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Known, Part, Parts, Workdir, read_json, stage
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import numpy as np

    from trnflow.tasks.metadata import PackedMeta, TokensMeta

    Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_TOKENS = 1 << 20
"""Tokens of the chunks that one part fills."""


class PackConfig(StageConfig):
    """Settings of `pack_chunks`: how rows of tokens become chunks of a few fixed lengths. Bucket lengths are chosen
    from the rows of train; if another split has a longer row, one more length is added for it."""

    strategy: Literal["pad", "bucket", "concat", "bfd"] = "bfd"
    """How rows are placed: `pad` (one row a chunk), `bucket` (one row a chunk of the shortest length that holds it),
    `concat` (rows end to end, cut anywhere) or `bfd` (best fit decreasing: several whole rows a chunk)."""
    chunk_length: Tokens = 512
    """The tokens of a chunk, and of the longest bucket."""
    lengths: tuple[Tokens, ...] | None = None
    """The lengths of the buckets, ascending. Default: chosen to pad as little as possible."""
    buckets: PositiveCount = 4
    """The most lengths that are chosen when `lengths` is not set."""
    overlong: Literal["split", "drop", "error"] = "error"
    """What happens to rows longer than the longest chunk."""

    @field_validator("lengths")
    @classmethod
    def _ascending(cls, lengths: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if lengths is not None and (not lengths or list(lengths) != sorted(set(lengths))):
            raise ValueError("lengths must ascend, each once")
        return lengths


def foresee(config: PackConfig, known: Known) -> Meta:
    """Return what of the metadata is known before the stage runs: of lengths those that the settings fix."""
    lengths = config.lengths if config.strategy == "bucket" else (config.chunk_length,)
    texts = {name: value for name, value in known.of("texts").items() if name in ("task", "labels", "splits")}
    return {**texts, "strategy": config.strategy, **({"lengths": list(lengths)} if lengths else {})}


def needs(config: PackConfig, known: Known) -> Iterator[str]:
    """Yield nothing; raise ConfigError for settings that the task can't have."""
    if task := known.of("texts").get("task"):
        _check(config, task)
    yield from ()


def split_chunks(config: PackConfig, tokens: Input[TokensMeta], out: Workdir) -> list[Part]:
    """Place the rows, and return blocks of chunks of one split and length; writes `counts.json`, layouts and segments."""
    _check(config, tokens.meta["task"])
    splits = {split: _fitting(split, config, tokens) for split in in_order(tokens.meta["splits"])}
    lengths = _lengths(config, splits)
    laid_out = {
        split: _place_chunks(split, fitting, lengths, config, tokens, out.path) for split, fitting in splits.items()
    }
    counts = {
        split: {"chunks": chunks, "real": real, "tokens": splits[split].tokens, "cut": splits[split].cut}
        for split, (chunks, real) in laid_out.items()
    }
    dropped = {split: fitting.dropped for split, fitting in splits.items() if fitting.dropped}
    placed = {"lengths": lengths, "splits": counts, "dropped": dropped}
    (out.path / "counts.json").write_text(json.dumps(placed), encoding="utf-8")  # in the order of the parts
    return [
        _part(config, tokens, split, length, first, min(first + step, chunks))
        for split, (by_length, _) in laid_out.items()
        for length, chunks in ((int(text), chunks) for text, chunks in by_length.items())
        for step in (max(1, BLOCK_TOKENS // length),)
        for first in range(0, chunks, step)
    ]


def _part(config: PackConfig, tokens: Input[TokensMeta], split: str, length: int, first: int, last: int) -> Part:
    arguments = {"split": split, "length": length, "first": first, "last": last}
    identity = {"params": {**keyed_params(config), **arguments}, "inputs": {"tokens": tokens.digest}}
    return Part(identity, arguments)


def pack_block(config: PackConfig, tokens: Input[TokensMeta], shared: Input, part: Meta, out: Workdir) -> Meta:
    """Fill chunks {split, length, first, last (not included)}. Returns {"supervised": tokens or labelled rows}."""
    import numpy as np

    source = tokens.path / part["split"]
    ids = load_array(source / "input_ids.npy", mapped=True)
    kind = kind_of(tokens.meta["task"])
    where = part_of(
        load_layout(_layout_folder(shared.path, part["split"], part["length"])), part["first"], part["last"]
    )
    labels = load_array(source / "labels.npy", mapped=True) if kind.per_row else None
    has_types = kind.pairs or tokens.meta.get("pair") or tokens.meta.get("head")
    types = load_array(source / TYPES_FILE, mapped=True) if has_types else None
    mask = None if kind.per_row else _loss_mask(part["split"], tokens)
    of_tokens = labels if kind.per_position else None
    block = fill(
        where, part["length"], ids, mask, tokens.meta["pad_id"], of_tokens, types, apart=kind.apart, pairs=kind.pairs
    )
    if labels is not None and not kind.per_position:
        block["labels"] = labels[where.pieces.row]
    for name, values in block.items():
        np.save(out.path / f"{name}.npy", values)
    return {"supervised": int((block["labels"] != IGNORED).sum())}


@stage(kind="packed", role="chunks", split=split_chunks, part=pack_block, foresee=foresee, needs=needs)
def pack_chunks(config: PackConfig, tokens: Input[TokensMeta], parts: Parts, out: Workdir) -> PackedMeta:
    """Write `<split>/<length>.arrow`, `<split>/<length>.segments.npy`, of marked answers `.marks.npy`, and `tokenizer/`.

    Columns: input_ids, segment_ids, position_ids int32 [chunks, length]; labels int32 [chunks], float32 [chunks,
    outputs], or int32 [chunks, length] with -100 where not supervised. Segment ids of two texts are token types plus 1, of texts
    read apart their numbers from 1.

    Returns the metadata of `tokens` and:
        lengths: In tokens, ascending.
        rows: {split: {"<length>": chunks}}.
        real_tokens, supervised_tokens, left_out: {split: tokens}; labelled rows count as supervised.
        cut, too_long_to_pack: {split: rows}.
        documents: Of pairs, as `PackedMeta`.
    """
    counts = read_json(parts.shared / "counts.json")
    splits, lengths, dropped = counts["splits"], counts["lengths"], counts["dropped"]
    supervised = {
        split: sum(
            _write_chunks(split, int(length), chunks, tokens, parts, out)
            for length, chunks in counts_of["chunks"].items()
        )
        for split, counts_of in splits.items()
    }
    shutil.copytree(tokens.path / "tokenizer", out.path / "tokenizer", copy_function=shutil.copyfile)
    left_out = {split: counts_of["tokens"] - counts_of["real"] for split, counts_of in splits.items()}
    if dropped:
        out.info(f"rows longer than {lengths[-1]} tokens dropped: {sum(dropped.values())}")
    if any(left_out.values()):
        out.warn(f"tokens left out, in parts of rows with nothing to train on: {sum(left_out.values())}")
    positions = sum(int(length) * count for length, count in splits["train"]["chunks"].items())
    meta: PackedMeta = {
        **tokens.meta,  # type: ignore[typeddict-item]  # mypy fears a key too_long_to_pack in it
        "lengths": lengths,
        "rows": {split: counts_of["chunks"] for split, counts_of in splits.items()},
        "real_tokens": {split: counts_of["real"] for split, counts_of in splits.items()},
        "supervised_tokens": supervised,
        "left_out": left_out,
        "strategy": config.strategy,
        "cut": {split: counts_of["cut"] for split, counts_of in splits.items()},
        "metrics": {
            "chunks": sum(splits["train"]["chunks"].values()),
            "efficiency": round(splits["train"]["real"] / positions, 4),
        },
    }
    if kind_of(meta["task"]).pairs:
        meta["documents"] = _documents(parts.shared, meta["rows"])
    if dropped:
        meta["dropped"] = {**tokens.meta["dropped"], "too_long_to_pack": sum(dropped.values())}
        meta["too_long_to_pack"] = dropped
    return meta


class Fitting(NamedTuple):
    """A split's rows, or pieces of rows, to pack. tokens: of all rows not dropped; cut, dropped: numbers of rows."""

    pieces: Pieces
    tokens: int
    cut: int
    dropped: int


def _check(config: PackConfig, task: str) -> None:
    per_row = kind_of(task).per_row
    if per_row and config.strategy in ("concat", "bfd"):
        raise ConfigError(
            f"pack.strategy: {config.strategy} puts several rows in a chunk, but a row of {task} stands alone",
            "use bucket or pad",
        )
    if per_row and config.overlong == "split":
        raise ConfigError("pack.overlong: rows with labels can't be split", "use tokenize.overlong=truncate, or drop")
    if kind_of(task).pairs and (config.strategy == "concat" or config.overlong == "split"):
        raise ConfigError(
            f"pack.{'strategy: concat' if config.strategy == 'concat' else 'overlong: split'} cuts rows, and the answers of a "
            "pair stay together",
            "use bfd, bucket or pad, and tokenize.overlong for long answers",
        )
    if config.lengths and config.strategy != "bucket":
        raise ConfigError(
            f"pack.lengths is for strategy bucket, but pack.strategy is {config.strategy}", "set pack.strategy=bucket"
        )
    if config.lengths and config.lengths[-1] > config.chunk_length:
        raise ConfigError(
            f"pack.lengths: {config.lengths[-1]} is longer than pack.chunk_length {config.chunk_length}",
            "raise pack.chunk_length",
        )


def _fitting(split: str, config: PackConfig, tokens: Input[TokensMeta]) -> Fitting:
    most = config.lengths[-1] if config.lengths else config.chunk_length
    pieces = whole_rows(load_array(tokens.path / split / "offsets.npy"))
    if not len(pieces.size):
        raise DataError(f"the split {split} has no rows", "give it rows, or leave it out: data.split")
    too_long = pieces.size > most
    count = int(too_long.sum())
    if count == 0 or config.strategy == "concat":
        return _teaching(split, pieces, tokens)
    if config.overlong == "error":
        raise _too_long(split, pieces, most, config, tokens)
    if config.overlong == "split":
        return _teaching(split, cut_rows(pieces, most), tokens)._replace(cut=count)
    if count == len(too_long):
        raise DataError(f"the split {split} is empty: all its rows are longer than {most}", f"raise {_limit(config)}")
    return _teaching(split, pieces.where(~too_long), tokens)._replace(dropped=count)


def _teaching(split: str, pieces: Pieces, tokens: Input[TokensMeta]) -> Fitting:
    """Return the rows without pieces in which nothing is trained on. Raises DataError if none is left."""
    total = int(pieces.size.sum())
    if not kind_of(tokens.meta["task"]).per_row:
        pieces = pieces.where(trained_on(pieces, _loss_mask(split, tokens)))
    if not len(pieces.size):
        raise DataError(
            f"the split {split} is empty: none of its rows has a token to train on, after its first",
            "check what format_prompts trains on, and pack.overlong",
        )
    return Fitting(pieces, total, 0, 0)


def _too_long(split: str, pieces: Pieces, most: int, config: PackConfig, tokens: Input[TokensMeta]) -> DataError:
    at = int((pieces.size > most).argmax())
    # tokenising may have dropped rows before this one
    row = int(load_array(tokens.path / split / "source_row.npy", mapped=True)[at])
    count, longest = int((pieces.size > most).sum()), int(pieces.size.max())
    kind = kind_of(tokens.meta["task"])
    texts = 2 if kind.pairs else tokens.meta["head"]["texts"] if kind.apart else 1
    instead = "drop" if kind.per_row or kind.pairs else "split or drop"
    return DataError(
        f"split {split} row {row + 1}: {pieces.size[at]} tokens don't fit a chunk of {most} ({count} such rows)",
        f"raise {_limit(config)} to {longest}, lower tokenize.max_length to {most // texts}, or set "
        f"pack.overlong to {instead}",
    )


def _limit(config: PackConfig) -> str:
    return "the last of pack.lengths" if config.lengths else "pack.chunk_length"


def _loss_mask(split: str, tokens: Input[TokensMeta]) -> Array:
    mask: Array = load_array(tokens.path / split / "loss_mask.npy", mapped=True)
    return mask


def _lengths(config: PackConfig, splits: dict[str, Fitting]) -> list[int]:
    if config.strategy != "bucket":
        return [config.chunk_length]
    if config.lengths:
        return list(config.lengths)
    lengths = bucket_lengths(splits["train"].pieces.size, config.chunk_length, config.buckets)
    longest = max(int(fitting.pieces.size.max()) for fitting in splits.values())
    if longest > lengths[-1]:
        lengths.append(min(-(-longest // ALIGN) * ALIGN, config.chunk_length))
    return lengths


def _layout_folder(shared: Path, split: str, length: int) -> Path:
    return shared / "layout" / f"{split}-{length}"


def _place_chunks(
    split: str, fitting: Fitting, lengths: list[int], config: PackConfig, tokens: Input[TokensMeta], shared: Path
) -> tuple[dict[str, int], int]:
    """Save the layout of each length; return ({"<length>": chunks}, tokens without padding)."""
    import numpy as np

    bucket = np.searchsorted(np.array(lengths), fitting.pieces.size)
    chunks, real = {}, 0
    for index, length in enumerate(lengths):
        pieces = fitting.pieces if len(lengths) == 1 else fitting.pieces.where(bucket == index)
        if len(pieces.size) == 0:
            continue
        layout = _layout(split, pieces, length, config, tokens)
        save_layout(layout, _layout_folder(shared, split, length))
        _save_segments(layout, tokens.path / split, segments_file(shared, split, length))
        if kind_of(tokens.meta["task"]).marked:
            _save_marks(layout, tokens.path / split, marks_file(shared, split, length))
        chunks[str(length)] = layout.chunks
        real += int(layout.pieces.size.sum())
    return chunks, real


def _save_segments(layout: ChunkLayout, tokens: Path, file: Path) -> None:
    """Write the source row of each segment. tokens: the split's folder of tokenize_text."""
    import numpy as np

    columns = [load_array(tokens / f"{name}.npy", mapped=True)[layout.pieces.row] for name in SEGMENTS]
    file.parent.mkdir(exist_ok=True)
    np.save(file, np.stack(columns, axis=1).astype(np.int64))


def _save_marks(layout: ChunkLayout, tokens: Path, file: Path) -> None:
    """Write int8 [chunks, pairs]: 1 or -1, 0 where a chunk has fewer pairs. tokens: as of `_save_segments`."""
    import numpy as np

    labels = load_array(tokens / "labels.npy")[layout.pieces.row]
    place = np.arange(len(labels)) - np.searchsorted(layout.chunk, layout.chunk)
    marks = np.zeros((layout.chunks, int(place.max()) + 1), np.int8)
    marks[layout.chunk, place] = np.where(labels == 1, 1, -1)
    np.save(file, marks)


def _layout(split: str, pieces: Pieces, length: int, config: PackConfig, tokens: Input[TokensMeta]) -> ChunkLayout:
    import numpy as np

    if config.strategy == "bfd":
        return best_fit(pieces, length)
    if config.strategy != "concat":
        return one_each(pieces)
    layout = concatenated(pieces, length)
    trained = trained_on(layout.pieces, _loss_mask(split, tokens))
    trained_chunks = layout.only(np.bincount(layout.chunk, trained, minlength=layout.chunks) > 0)
    if not trained_chunks.chunks:
        raise DataError(f"no chunk of {length} in the split {split} has a token to train on", "raise pack.chunk_length")
    return trained_chunks


def _documents(shared: Path, rows: dict[str, dict[str, int]]) -> int:
    """Return the number of documents in the fullest chunk of pairs, rounded up to a power of two."""
    import numpy as np

    folders = [_layout_folder(shared, split, int(length)) for split, counts in rows.items() for length in counts]
    pairs = max(int(np.bincount(load_layout(folder).chunk).max()) for folder in folders)
    return 1 << (2 * pairs - 1).bit_length()


def _write_chunks(split: str, length: int, chunks: int, tokens: Input[TokensMeta], parts: Parts, out: Workdir) -> int:
    """Write the file of one split and length, block by block; return supervised tokens, or labelled rows."""

    wanted = shapes(tokens.meta["task"], chunks, length, len(tokens.meta["labels"] or ()))
    columns = create_columns(chunk_file(out.path, split, length), wanted, kind_of(tokens.meta["task"]).target_type)
    supervised = 0
    for part in parts.of(split=split, length=length):
        first, last = part.arguments["first"], part.arguments["last"]
        for name, column in columns.items():
            column[first:last] = load_array(part.folder / f"{name}.npy", mapped=True)
        supervised += part.meta["supervised"]
        out.progress(last, chunks, f"{split} chunks of {length}")
    for named in (segments_file, *((marks_file,) if kind_of(tokens.meta["task"]).marked else ())):
        shutil.copyfile(named(parts.shared, split, length), named(out.path, split, length))
    return supervised
