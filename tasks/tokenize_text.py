"""Turn texts into token ids, with a mask of what is trained on; or train the tokenizer first.

A causal text has the ids of the whole, as at inference, and the mask follows from character offsets: a token is trained on
if it holds a trained character. bos stands first if the tokenizer puts it there; eos is appended (a chat template writes both
itself), neither twice. Special tokens count where a template wrote them; in a row's own text their letters are text. Rows
without any supervised token teach nothing: dropped and counted. Rows are cut into shards of 2 MiB of text, each kept by
itself, so that changed data tokenises only the shards it changed; memory is a shard, whose distinct words are tokenised over
all cores. The bytes depend neither on the cuts nor on the number of cores. Keyed by the tokenizer's files and the size of a
pretrained model's vocabulary, never by weights.
Fails with DataError for an overlong row when `overlong` is "error", ModelError for an unreadable or padless tokenizer, or one
with more ids than the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import PositiveInt

from tasks.artifact import Artifact, Input, Meta, Source
from tasks.config import NOT_KEYED, StageConfig, keyed_params
from tasks.errors import ConfigError, DataError, ModelError
from tasks.memo import sha256_file
from tasks.model_source import tokenizer_folder
from tasks.stage import Keyed, Workdir, stage
from tasks.text.arrays import GrowingArray
from tasks.text.encoders import CausalEncoder, ClassEncoder, without_unsupervised
from tasks.text.shards import content_digest, cut_shards
from tasks.text.tokenizer import FastTokenizer, read_tokenizer, save_tokenizer
from tasks.text.trainer import TrainTokenizer, train_tokenizer

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1024
BLOCK = 1 << 18
"""Rows whose lengths are counted at once."""

WORDS = 60
"""Letters of an example."""

Encoder = ClassEncoder | CausalEncoder


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
    bos_id, eos_id, max_length, overlong {name: rows that were too long}, dropped {reason: rows}, lengths_of_rows {name:
    percentiles and a histogram}, examples {what: the first row that was too long, or spelled a special token}."""
    causal = texts.meta["task"] == "causal_lm"
    if config.overlong == "split" and not causal:
        raise ConfigError("tokenize.overlong: a classified text can't be split", "use truncate, drop or error")
    loaded = _tokenizer(config, texts, model, causal, out)
    special = loaded.meta()
    identity = _identity(config, texts, out)
    encoder = _encoder(config, loaded, texts.meta)
    counts = {split: _tokenize_split(split, encoder, config, identity, texts, out) for split in texts.meta["splits"]}
    dropped = {
        reason: total
        for reason in ("overlong", "unsupervised")
        if (total := sum(count.dropped[reason] for count in counts.values()))
    }
    examples = _report(config, counts, dropped, out)
    lengths = {split: _lengths(split, out) for split in counts}
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
        "lengths_of_rows": lengths,
        "metrics": {
            "tokens": sum(count.tokens for count in counts.values()),
            "vocab_size": special["vocab_size"],
            **next(iter(lengths.values()))["percentiles"],
        },
    }


class Example(NamedTuple):
    """row: from 1, among what was read; what: is to be said of it; text: its first words."""

    row: int
    what: str
    text: str

    @classmethod
    def of(cls, rows: pa.Table, row: int, what: str) -> Example:
        """row: from 0."""
        given = rows.slice(row, 1).to_pylist()[0]
        text = given["text"] if "text" in given else "".join(part["text"] for part in given["parts"])
        return cls(row + 1, what, shorten(" ".join(text[:1000].split()), WORDS, placeholder=" ..."))

    def told(self, split: str, before: int = 0) -> str:
        return f"split {split} row {self.row + before}: {self.what}, in {self.text!r}"


@dataclass
class Count:
    """What became of rows. read: of the texts; forged: whose text spells special tokens; first: the first of a kind."""

    read: int = 0
    rows: int = 0
    tokens: int = 0
    longest: int = 0
    overlong: int = 0
    forged: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {"overlong": 0, "unsupervised": 0})
    first: dict[str, Example] = field(default_factory=dict)

    def add(self, other: Meta) -> None:
        """The shard that comes next."""
        for what, (row, *told) in other["first"].items():
            self.first.setdefault(what, Example(row + self.read, *told))
        self.read += other["read"]
        self.rows += other["rows"]
        self.tokens += other["tokens"]
        self.longest = max(self.longest, other["longest"])
        self.overlong += other["overlong"]
        self.forged += other["forged"]
        self.dropped = {reason: count + other["dropped"][reason] for reason, count in self.dropped.items()}

    def meta(self) -> Meta:
        return {**asdict(self), "first": {what: list(example) for what, example in self.first.items()}}


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


def _encoder(config: TokenizeConfig, loaded: FastTokenizer, meta: Meta) -> Encoder:
    if meta["task"] == "classification":
        return ClassEncoder(loaded, config.max_length, config.overlong)
    return CausalEncoder(
        loaded,
        config.max_length,
        config.overlong,
        add_eos=config.add_eos,
        framed=meta["framed"],
        templates=tuple(meta.get("templates", ())),
    )


def _texts(path: Path) -> Iterator[str]:
    """The texts of a split, causal ones with their parts joined."""
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(BATCH):
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
    split: str, encoder: Encoder, config: TokenizeConfig, identity: Meta, texts: Input, out: Workdir
) -> Count:
    import numpy as np
    import pyarrow.parquet as pq

    folder, total, count, done = out.path / split, texts.meta["splits"][split], Count(), 0
    with ExitStack() as stack:
        ids = stack.enter_context(GrowingArray(folder / "input_ids.npy", "<i4"))
        offsets = stack.enter_context(GrowingArray(folder / "offsets.npy", "<i8"))
        extra = stack.enter_context(GrowingArray(folder / f"{encoder.extra}.npy", encoder.extra_type))
        offsets.append(np.zeros(1, dtype=np.int64))
        for rows in cut_shards(pq.ParquetFile(texts.path / f"{split}.parquet").iter_batches(BATCH), config.shard_bytes):
            inputs = {**identity["inputs"], "rows": content_digest(rows)}
            make = partial(_make_shard, rows, Place(split, done, total), encoder, config, out)
            made, meta = out.shard({**identity, "inputs": inputs}, make)
            offsets.append(np.cumsum(np.load(made / "lengths.npy"), dtype=np.int64) + ids.size)
            ids.append(np.load(made / "input_ids.npy"))
            extra.append(np.load(made / f"{encoder.extra}.npy"))
            count.add(meta)
            done += rows.num_rows
            out.progress(done, total, f"{split} rows")
    if count.rows == 0:
        raise DataError(f"the split {split} is empty: all its {total} rows were dropped", "raise tokenize.max_length")
    return count


def _lengths(split: str, out: Workdir) -> Meta:
    """`percentiles {length_p50 ...}` and the histogram `rows {"<most tokens>": rows}`, in bins that double; a curve over
    the lengths, too, so that it can be seen where the run is logged."""
    import numpy as np

    offsets = np.load(out.path / split / "offsets.npy", mmap_mode="r")
    counts = np.zeros(1, dtype=np.int64)  # rows of each length
    for start in range(0, len(offsets) - 1, BLOCK):
        more = np.bincount(np.diff(offsets[start : start + BLOCK + 1]), minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    below = np.cumsum(counts)
    at = {f"length_p{share}": int(np.searchsorted(below, below[-1] * share / 100)) for share in (50, 95, 99)}
    bins = [0, *(2**power for power in range(len(counts).bit_length() + 1))]
    edges = [0, *below[np.minimum(bins[1:], len(counts) - 1)].tolist()]
    rows = {most: end - start for most, (start, end) in zip(bins[1:], pairwise(edges), strict=True) if end > start}
    for most, count in rows.items():
        out.metrics(most, **{f"{split}_rows_by_length": count})
    return {"percentiles": at, "rows": {str(most): count for most, count in rows.items()}}


class Place(NamedTuple):
    """Where a shard begins: after `done` of `total` rows. For what is said, not for what is made."""

    split: str
    done: int
    total: int


def _make_shard(
    rows: pa.Table, place: Place, encoder: Encoder, config: TokenizeConfig, out: Workdir, folder: Path
) -> Meta:
    """`input_ids.npy` int32 [tokens], `lengths.npy` int32 [rows], `labels.npy` or `loss_mask.npy`; meta: a Count."""
    import numpy as np

    made = encoder.encode(rows)
    long = np.flatnonzero(made.lengths > config.max_length)
    if len(long) and config.overlong == "error":
        what = f"{made.lengths[long[0]]} tokens, more than tokenize.max_length {config.max_length}"
        raise DataError(
            Example.of(rows, int(long[0]), what).told(place.split, place.done),
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
    np.save(folder / "input_ids.npy", made.ids)
    np.save(folder / "lengths.npy", made.sizes.astype(np.int32))
    np.save(folder / f"{encoder.extra}.npy", made.extra)
    return count.meta()


def _examples(counts: dict[str, Count], what: str) -> tuple[str, Meta]:
    """(as it is told, as metadata) of the first row in the first split that has one."""
    for split, count in counts.items():
        if example := count.first.get(what):
            return example.told(split), {"split": split, **example._asdict()}
    raise KeyError(what)


def _report(config: TokenizeConfig, counts: dict[str, Count], dropped: Meta, out: Workdir) -> Meta:
    """Tell what was lost or read otherwise than written, each with an example; the examples."""
    examples: Meta = {}
    too_long = {split: count.overlong for split, count in counts.items() if count.overlong}
    if too_long:
        told, examples["overlong"] = _examples(counts, "overlong")
        verb = {"truncate": "cut", "split": "split", "drop": "dropped"}[config.overlong]
        many = ", ".join(f"{number} of {split}" for split, number in too_long.items())
        say = out.info if config.overlong == "split" else out.warn
        say(f"rows longer than {config.max_length} tokens, {verb}: {many} (the first: {told})")
    forged = sum(count.forged for count in counts.values())
    if forged:
        told, examples["forged"] = _examples(counts, "forged")
        out.warn(f"rows whose text spells a special token, read as plain text: {forged} (the first: {told})")
    if dropped.get("unsupervised"):
        out.warn(f"rows without a token to train on, dropped: {dropped['unsupervised']} (a prompt may fill max_length)")
    return examples
