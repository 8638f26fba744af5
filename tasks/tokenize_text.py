"""Turn texts into token ids, with a mask of what is trained on; or train the tokenizer first.

A causal text has the ids of the whole, as at inference, and the mask follows from character offsets: a token is trained on
if it holds a trained character. bos stands first if the tokenizer puts it there; eos is appended (a chat template writes both
itself), neither twice. Special tokens count where a template wrote them; in a row's own text their letters are text. Rows
without any supervised token teach nothing: dropped and counted. Rows are cut into shards of 2 MiB of text, each kept by
itself, so that changed data tokenises only the shards it changed; memory is a few shards, of which the distinct words are
tokenised over all cores. The bytes depend neither on the cuts nor on the number of cores. Keyed by the tokenizer's files and
the size of a pretrained model's vocabulary, never by weights.
Fails with DataError for an overlong row when `overlong` is "error", ModelError for an unreadable or padless tokenizer, or one
with more ids than the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import PositiveInt

from tasks.artifact import Artifact, Input, Meta, Source
from tasks.config import NOT_KEYED, StageConfig, keyed_params
from tasks.errors import ConfigError, DataError, ModelError
from tasks.memo import sha256_file
from tasks.model_source import tokenizer_folder
from tasks.stage import Keyed, Part, Workdir, stage
from tasks.text.arrays import GrowingArray
from tasks.text.encoders import CausalEncoder, ClassEncoder, Encoder, encoder_type, without_unsupervised
from tasks.text.shards import content_digest, cut_shards
from tasks.text.tables import read_rows
from tasks.text.tally import Count, Example, report, row_lengths
from tasks.text.tokenizer import FastTokenizer, read_tokenizer, save_tokenizer
from tasks.text.trainer import TrainTokenizer, train_tokenizer

BATCH = 1024


class TokenizeConfig(StageConfig):
    """max_length: tokens a row, special ones included; overlong: what happens to longer rows (`split` only for causal
    texts); add_eos: at the end of causal texts; train: a tokenizer of the recipe's own, on the train split; shard_bytes: of
    text, on average, in what is tokenised and kept by itself: less is redone when data changes, and more files are kept."""

    max_length: PositiveInt = 512
    overlong: Literal["truncate", "split", "drop", "error"] = "truncate"
    add_eos: bool = True
    train: TrainTokenizer | None = None
    shard_bytes: Annotated[PositiveInt, NOT_KEYED] = 2 << 20


def _inputs(config: TokenizeConfig, inputs: Keyed) -> Meta:
    """Of the model its tokenizer, and how many ids a pretrained one takes: it is checked here."""
    texts, model = inputs["texts"], inputs["model"]
    assert isinstance(texts, Artifact) and isinstance(model, Source)
    most = _embeddings(model)
    keyed = {"tokenizer": None if config.train else model.identity["tokenizer"]}
    return {"texts": texts.digest, "model": {**keyed, **({"vocab_size": most} if most else {})}}


def _embeddings(model: Source) -> int | None:
    """The ids that a pretrained model takes, as its config says; None for one from scratch, which takes the tokenizer's."""
    config = model.identity.get("config") or {}
    if not config.get("pretrained"):
        return None
    fields = {**config["pretrained"], **config["overrides"]}
    found = fields.get("vocab_size") or (fields.get("text_config") or {}).get("vocab_size")
    return found if isinstance(found, int) else None


@stage(kind="tokens", inputs=_inputs)
def tokenize_text(config: TokenizeConfig, texts: Input, model: Source, out: Workdir) -> Meta:
    """texts -> `<split>/input_ids.npy` int32 [tokens], `offsets.npy` int64 [rows + 1], and `labels.npy` int32 [rows] or
    `loss_mask.npy` uint8 [tokens]; `tokenizer/`.

    meta: task, labels, splits {name: rows}, tokens {name: n}, longest (tokens of the longest row), vocab_size, pad_id,
    bos_id, eos_id, max_length, overlong {name: rows that were too long}, dropped {reason: rows}, row_lengths {name:
    percentiles and a histogram}, examples {what: the first row that was too long, or spelled a special token}."""
    causal = texts.meta["task"] == "causal_lm"
    if config.overlong == "split" and not causal:
        raise ConfigError("tokenize.overlong: a classified text can't be split", "use truncate, drop or error")
    special = _tokenizer(config, texts, model, causal, out).meta()
    identity = _identity(config, texts, out)
    inputs = {"texts": texts, "tokenizer": out.share(out.path / "tokenizer", "tokenizer")}
    counts = {split: _tokenize_split(split, config, identity, inputs, out) for split in texts.meta["splits"]}
    dropped = {
        reason: total
        for reason in ("overlong", "unsupervised")
        if (total := sum(count.dropped[reason] for count in counts.values()))
    }
    examples = report(config.max_length, config.overlong, counts, dropped, out)
    lengths = {split: row_lengths(out.path / split) for split in counts}
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
        "examples": examples,
        "row_lengths": lengths,
        "metrics": {
            "tokens": sum(count.tokens for count in counts.values()),
            "vocab_size": special["vocab_size"],
            **next(iter(lengths.values()))["percentiles"],
        },
    }


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
    if (most := _embeddings(model)) and loaded.vocab_size > most:
        raise ModelError(
            f"the tokenizer {loaded.name} has ids up to {loaded.vocab_size - 1}, and the model takes {most} (its vocab_size)",
            "use the model's own tokenizer (leave model.tokenizer and tokenize.train out)",
        )
    save_tokenizer(loaded, folder, out.path / "tokenizer")
    return loaded


def _texts(path: Path) -> Iterator[str]:
    """The texts of a split, causal ones with their parts joined."""
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(BATCH):
        for row in batch.to_pylist():
            yield row["text"] if "text" in row else "".join(part["text"] for part in row["parts"])


def _identity(config: TokenizeConfig, texts: Input, out: Workdir) -> Meta:
    """What a shard's tokens depend on besides its rows. A trained tokenizer is what came of training, not how it was trained."""
    shape: Meta = {name: texts.meta[name] for name in ("task", "framed", "templates") if name in texts.meta}
    params = {**shape, **keyed_params(config)}
    tokenizer = {path.name: sha256_file(path) for path in sorted((out.path / "tokenizer").iterdir())}
    del params["train"]
    return {"params": params, "inputs": {"tokenizer": tokenizer}}


def _tokenize_split(
    split: str, config: TokenizeConfig, identity: Meta, inputs: dict[str, Input], out: Workdir
) -> Count:
    import numpy as np

    texts = inputs["texts"]
    extra, extra_type = encoder_type(texts.meta["task"]).extra, encoder_type(texts.meta["task"]).extra_type
    folder, total, count = out.path / split, texts.meta["splits"][split], Count()
    with ExitStack() as stack:
        ids = stack.enter_context(GrowingArray(folder / "input_ids.npy", "<i4"))
        offsets = stack.enter_context(GrowingArray(folder / "offsets.npy", "<i8"))
        extras = stack.enter_context(GrowingArray(folder / f"{extra}.npy", extra_type))
        offsets.append(np.zeros(1, dtype=np.int64))
        parts = _parts(split, texts, config, identity)
        for here, meta in stack.enter_context(closing(out.parts(tokenize_rows, config, inputs, parts, keep=True))):
            offsets.append(np.cumsum(np.load(here / "lengths.npy"), dtype=np.int64) + ids.size)
            ids.append(np.load(here / "input_ids.npy"))
            extras.append(np.load(here / f"{extra}.npy"))
            count.add(meta)
            out.progress(count.read, total, f"{split} rows")
    if count.rows == 0:
        raise DataError(f"the split {split} is empty: all its {total} rows were dropped", "raise tokenize.max_length")
    return count


def _parts(split: str, texts: Input, config: TokenizeConfig, identity: Meta) -> Iterator[Part]:
    """The shards of a split, and the digest of what each holds."""
    import pyarrow.parquet as pq

    first = 0
    batches = pq.ParquetFile(texts.path / f"{split}.parquet", pre_buffer=False).iter_batches(BATCH)
    for rows in cut_shards(batches, config.shard_bytes):
        inputs = {**identity["inputs"], "rows": content_digest(rows)}
        yield Part({**identity, "inputs": inputs}, {"split": split, "first": first, "count": rows.num_rows})
        first += rows.num_rows


def tokenize_rows(config: TokenizeConfig, texts: Input, tokenizer: Input, part: Meta, out: Workdir) -> Meta:
    """A shard: rows `first`..`first + count` of `split` -> `input_ids.npy` int32 [tokens], `lengths.npy` int32 [rows],
    `labels.npy` or `loss_mask.npy`; meta: a Count."""
    import numpy as np

    encoder = _encoder(tokenizer.path, config.model_dump_json(), json.dumps(texts.meta))
    rows = read_rows(texts.path / f"{part['split']}.parquet", part["first"], part["count"])
    made = encoder.encode(rows)
    long = np.flatnonzero(made.lengths > config.max_length)
    if len(long) and config.overlong == "error":
        what = f"{made.lengths[long[0]]} tokens, more than tokenize.max_length {config.max_length}"
        raise DataError(
            Example.of(rows, int(long[0]), what).told(part["split"], part["first"]),
            "raise it, or set tokenize.overlong to truncate, split or drop",
        )
    count = Count(read=rows.num_rows, overlong=len(long), forged=len(made.forged))
    if len(long):
        count.first["overlong"] = Example.of(rows, int(long[0]), f"{made.lengths[long[0]]} tokens")
    if made.forged:
        count.first["forged"] = Example.of(rows, *made.forged[0])
    if config.overlong == "drop":
        count.dropped["overlong"] = len(long)
    made = without_unsupervised(made) if encoder.extra == "loss_mask" else made
    count.dropped["unsupervised"] = made.unsupervised
    count.rows, count.tokens, count.longest = len(made.sizes), len(made.ids), int(made.sizes.max(initial=0))
    np.save(out.path / "input_ids.npy", made.ids)
    np.save(out.path / "lengths.npy", made.sizes.astype(np.int32))
    np.save(out.path / f"{encoder.extra}.npy", made.extra)
    return count.meta()


@lru_cache(maxsize=2)
def _encoder(folder: Path, config: str, texts: str) -> Encoder:
    """Of a tokenizer's folder, a TokenizeConfig and the texts' metadata, both as JSON; once a process, for reading it takes as
    long as tokenising thousands of rows, and the words it has met need not be tokenised again."""
    settings, meta, loaded = TokenizeConfig.model_validate_json(config), json.loads(texts), read_tokenizer(folder)
    if encoder_type(meta["task"]) is ClassEncoder:
        return ClassEncoder(loaded, settings.max_length, settings.overlong)
    return CausalEncoder(
        loaded,
        settings.max_length,
        settings.overlong,
        add_eos=settings.add_eos,
        framed=meta["framed"],
        templates=tuple(meta.get("templates", ())),
    )
