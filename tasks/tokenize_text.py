"""Turn texts into token ids, with a mask of what is trained on; or train the tokenizer first.

A causal text is tokenised whole, as at inference, and the mask follows from character offsets: a token is trained on if it
holds a trained character. bos stands first if the tokenizer puts it there; eos is appended. Rows without any supervised
token teach nothing: dropped and counted. Batches of 1,024 rows over all cores, arrays appended to files: memory is a
batch, and the bytes don't depend on the number of cores. Keyed by the tokenizer's files alone, never by weights.
Fails with DataError for an overlong row when `overlong` is "error", ModelError for an unreadable or padless tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from tasks.artifact import Artifact, Input, Meta, Source
from tasks.config import StageConfig
from tasks.errors import ConfigError, DataError, ModelError
from tasks.model_source import tokenizer_folder
from tasks.stage import Keyed, Workdir, stage
from tasks.text.arrays import GrowingArray
from tasks.text.encoders import CausalEncoder, ClassEncoder, Encoded, Piece
from tasks.text.tokenizer import FastTokenizer, read_tokenizer, save_tokenizer
from tasks.text.trainer import TrainTokenizer, train_tokenizer

BATCH = 1024


class TokenizeConfig(StageConfig):
    """max_length: tokens a row, special ones included; overlong: what happens to longer rows (`split` only for causal
    texts); add_eos: at the end of causal texts; train: a tokenizer of the recipe's own, on the train split."""

    max_length: PositiveInt = 512
    overlong: Literal["truncate", "split", "drop", "error"] = "truncate"
    add_eos: bool = True
    train: TrainTokenizer | None = None


def _inputs(config: TokenizeConfig, inputs: Keyed) -> Meta:
    texts, model = inputs["texts"], inputs["model"]
    assert isinstance(texts, Artifact) and isinstance(model, Source)
    return {"texts": texts.digest, "model": {"tokenizer": None if config.train else model.identity["tokenizer"]}}


@stage(kind="tokens", inputs=_inputs)
def tokenize_text(config: TokenizeConfig, texts: Input, model: Source, out: Workdir) -> Meta:
    """texts -> `<split>/input_ids.npy` int32 [tokens], `offsets.npy` int64 [rows + 1], and `labels.npy` int32 [rows] or
    `loss_mask.npy` uint8 [tokens]; `tokenizer/`.

    meta: task, labels, splits {name: rows}, tokens {name: n}, longest (tokens of the longest row), vocab_size, pad_id,
    bos_id, eos_id, max_length, overlong {name: rows that were too long}, dropped {reason: rows}."""
    causal = texts.meta["task"] == "causal_lm"
    if config.overlong == "split" and not causal:
        raise ConfigError("tokenize.overlong: a classified text can't be split", "use truncate, drop or error")
    loaded = _tokenizer(config, texts, model, causal, out)
    special = loaded.meta()
    encoder: ClassEncoder | CausalEncoder = (
        CausalEncoder(loaded, config.max_length, config.overlong, config.add_eos)
        if causal
        else ClassEncoder(loaded, config.max_length, config.overlong)
    )
    counts = {split: _tokenize_split(split, encoder, config, texts, out) for split in texts.meta["splits"]}
    dropped = {
        reason: total
        for reason in ("overlong", "unsupervised")
        if (total := sum(count.dropped[reason] for count in counts.values()))
    }
    _report(config, counts, dropped, out)
    return {
        "task": texts.meta["task"],
        "labels": texts.meta["labels"],
        "splits": {split: count.rows for split, count in counts.items()},
        "tokens": {split: count.tokens for split, count in counts.items()},
        "longest": max(count.longest for count in counts.values()),
        **special,
        "max_length": config.max_length,
        "overlong": {split: count.overlong for split, count in counts.items()},
        "dropped": dropped,
        "metrics": {"tokens": sum(count.tokens for count in counts.values()), "vocab_size": special["vocab_size"]},
    }


@dataclass
class Count:
    """What became of a split's rows."""

    rows: int = 0
    tokens: int = 0
    longest: int = 0
    overlong: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {"overlong": 0, "unsupervised": 0})


def _tokenizer(config: TokenizeConfig, texts: Input, model: Source, causal: bool, out: Workdir) -> FastTokenizer:
    """Trained or read, and saved as `tokenizer/`."""
    folder = None if config.train else tokenizer_folder(model)
    if config.train:
        out.info(f"training a {config.train.kind} tokenizer of {config.train.vocab_size} entries")
        loaded = train_tokenizer(config.train, lambda: _texts(texts.path / "train.parquet"), causal)
    elif folder is None:
        raise ModelError(
            "the recipe's model brings no tokenizer", "set model.tokenizer, or train one: tokenize.train.kind"
        )
    else:
        loaded = read_tokenizer(folder)
    save_tokenizer(loaded, folder, out.path / "tokenizer")
    return loaded


def _texts(path: Path) -> Iterator[str]:
    """The texts of a split, causal ones with their parts joined."""
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(BATCH):
        for row in batch.to_pylist():
            yield row["text"] if "text" in row else "".join(part["text"] for part in row["parts"])


def _tokenize_split(
    split: str, encoder: ClassEncoder | CausalEncoder, config: TokenizeConfig, texts: Input, out: Workdir
) -> Count:
    import numpy as np
    import pyarrow.parquet as pq

    causal = isinstance(encoder, CausalEncoder)
    folder, total, count, done = out.path / split, texts.meta["splits"][split], Count(), 0
    with ExitStack() as stack:
        ids = stack.enter_context(GrowingArray(folder / "input_ids.npy", "<i4"))
        offsets = stack.enter_context(GrowingArray(folder / "offsets.npy", "<i8"))
        extra = (folder / "loss_mask.npy", "|u1") if causal else (folder / "labels.npy", "<i4")
        extras = stack.enter_context(GrowingArray(*extra))
        offsets.append(np.zeros(1, dtype=np.int64))
        for batch in pq.ParquetFile(texts.path / f"{split}.parquet").iter_batches(BATCH):
            for number, row in enumerate(encoder.encode(batch), done + 1):
                for piece in _kept(row, f"split {split} row {number}", config, causal, count):
                    ids.append(piece.ids)
                    extras.append(piece.extra)
                    offsets.append(np.array([ids.size]))
            done += batch.num_rows
            out.progress(done, total, f"{split} rows")
    if count.rows == 0:
        raise DataError(f"the split {split} is empty: all its {total} rows were dropped", "raise tokenize.max_length")
    return count


def _kept(row: Encoded, where: str, config: TokenizeConfig, causal: bool, count: Count) -> Iterator[Piece]:
    """The pieces of a row that are written; the others are counted."""
    count.overlong += row.too_long
    if row.too_long and config.overlong == "error":
        raise DataError(
            f"{where}: {row.length} tokens, more than tokenize.max_length {config.max_length}",
            "raise it, or set tokenize.overlong to truncate, split or drop",
        )
    if row.too_long and config.overlong == "drop":
        count.dropped["overlong"] += 1
        return
    for piece in row.pieces:
        if causal and not piece.extra[1:].any():
            count.dropped["unsupervised"] += 1
            continue
        count.rows += 1
        count.tokens += len(piece.ids)
        count.longest = max(count.longest, len(piece.ids))
        yield piece


def _report(config: TokenizeConfig, counts: dict[str, Count], dropped: Meta, out: Workdir) -> None:
    verb = {"truncate": "cut", "split": "split", "drop": "dropped"}.get(config.overlong, "")
    too_long = {split: count.overlong for split, count in counts.items() if count.overlong}
    if too_long:
        told = ", ".join(f"{number} of {split}" for split, number in too_long.items())
        out.info(f"rows longer than {config.max_length} tokens, {verb}: {told}")
    if dropped.get("unsupervised"):
        out.warn(f"rows without a token to train on, dropped: {dropped['unsupervised']} (a prompt may fill max_length)")
