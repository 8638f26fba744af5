"""Turn texts into token ids and, for language models, a loss mask; optionally train the tokenizer first.

A token is trained on if one of its characters is. A special token counts as one only where a template wrote it. Raises
DataError for an overlong row with `overlong` "error", ModelError for an unfit tokenizer.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.config import keyed_params
from trnflow.tasks.data.format.unlike_splits import ACCENTS, APART, TOGETHER, unlike_splits
from trnflow.tasks.data.special_tokens import read_object
from trnflow.tasks.data.tables import read_rows
from trnflow.tasks.data.texts import PAIR, TYPES_FILE, in_order
from trnflow.tasks.data.tokenization.arrays import GrowingArray
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.data.tokenization.encoder_types import Encoder, encoder_type
from trnflow.tasks.data.tokenization.encoders import ClassEncoder, without_unsupervised
from trnflow.tasks.data.tokenization.folder_settings import TOKENIZER_CONFIG
from trnflow.tasks.data.tokenization.length_counts import Count, Example, report, report_ends, row_lengths
from trnflow.tasks.data.tokenization.lost_signs import lost_difference
from trnflow.tasks.data.tokenization.mismatched import add_mismatched
from trnflow.tasks.data.tokenization.recipe_tokenizer import embeddings_of, make_tokenizer, no_tokenizer
from trnflow.tasks.data.tokenization.template_tokens import mark_ends, template_tokens, write_template
from trnflow.tasks.data.tokenization.token_shards import content_digest, cut_shards
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Keyed, Known, Part, Parts, Workdir, read_json, stage, write_json
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.metadata import EndsMeta, SpecialIds, TextsMeta, TokensMeta

BATCH = 1024


def _inputs(config: TokenizeConfig, inputs: Keyed) -> Meta:
    """Return what is keyed: texts, the tokenizer's files, the model's vocabulary size."""
    texts, model = inputs["texts"], inputs["model"]
    assert isinstance(texts, Artifact) and isinstance(model, Source)
    most = embeddings_of(model)
    keyed = {"tokenizer": None if config.train else model.identity["tokenizer"]}
    return {"texts": texts.digest, "model": {**keyed, **({"vocab_size": most} if most else {})}}


def foresee(config: TokenizeConfig, known: Known) -> Meta:
    """Return the most tokens of a row."""
    return {"max_length": config.max_length}


def needs(config: TokenizeConfig, known: Known) -> Iterator[str]:
    """Raise ConfigError when a tokenizer is trained for a pretrained model, whose embeddings belong to its own ids, or a
    row with a class label would be split; ModelError without a tokenizer."""
    if task := known.of("texts").get("task"):
        _check_overlong(config, task)
    model = known.sources.get("model")
    if config.train is None and model is not None and model.identity["tokenizer"] is None:
        raise no_tokenizer()
    if config.train and model is not None and model.location.get("model") is not None:
        raise ConfigError(
            "tokenize.train makes a new vocabulary, but the embeddings of model.source were trained with another one: the "
            "same ids would mean other words",
            "set tokenize.train=null to take the model's tokenizer, or leave model.source out (model.config: from scratch)",
        )
    sentence = (model and model.identity.get("sentence")) or {}
    if (longest := sentence.get("max_seq_length")) and longest != config.max_length and task and kind_of(task).apart:
        yield (
            f"the model's folder reads {longest} tokens of a text (sentence_bert_config.json), and tokenize.max_length is "
            f"{config.max_length}: so will the published one"
        )


def _check_overlong(config: TokenizeConfig, task: str) -> None:
    kind = kind_of(task)
    if config.overlong == "split" and (kind.per_row or kind.pairs):
        what = "an answer that is compared" if kind.pairs else "a text with a class label"
        raise ConfigError(f"tokenize.overlong: {what} can't be split", "use truncate, drop or error")


def split_texts(config: TokenizeConfig, texts: Input[TextsMeta], model: Source, out: Workdir) -> list[Part]:
    """Read or train the tokenizer, and return the shards as parts; writes `tokenizer/` and `special.json`."""
    causal = not kind_of(texts.meta["task"]).per_row
    _check_overlong(config, texts.meta["task"])
    write_json(out.path / "special.json", make_tokenizer(config, texts, model, causal, out))
    identity = _identity(config, texts, out)
    return [part for split in in_order(texts.meta["splits"]) for part in _parts(split, texts, config, identity)]


def tokenize_rows(config: TokenizeConfig, texts: Input[TextsMeta], shared: Input, part: Meta, out: Workdir) -> Meta:
    """Tokenise a shard: {split, first, count} rows. Returns a Count as JSON.

    Writes `input_ids.npy` int32 [tokens], `lengths.npy` int32 [rows], `labels.npy` or `loss_mask.npy`, `source_row.npy`
    int64 [rows], `source_tokens.npy` int32 [rows]; of rows with two texts `token_types.npy` uint8 [tokens].
    """
    import numpy as np

    encoder = _encoder(shared.path / "tokenizer", config.model_dump_json(), json.dumps(texts.meta))
    rows = read_rows(texts.path / f"{part['split']}.parquet", part["first"], part["count"])
    encoded = encoder.encode(rows)
    long = np.flatnonzero(encoded.lengths > config.max_length)
    if len(long) and config.overlong == "error":
        what = f"{encoded.lengths[long[0]]} tokens, more than tokenize.max_length {config.max_length}"
        raise DataError(
            Example.of(rows, int(long[0]), what).describe(part["split"], part["first"]),
            "raise it, or set tokenize.overlong to truncate, split or drop",
        )
    count = Count(read=rows.num_rows, overlong=len(long), forged=len(encoded.forged), apart=len(encoded.apart))
    if len(long):
        count.first["overlong"] = Example.of(rows, int(long[0]), f"{encoded.lengths[long[0]]} tokens")
    if encoded.forged:
        count.first["forged"] = Example.of(rows, *encoded.forged[0])
    if count.apart:
        count.first["apart"] = _apart(rows, encoded.apart[0])
    if config.overlong == "drop":
        count.dropped["overlong"] = len(long)
    encoded = without_unsupervised(encoded) if encoder.extra == "loss_mask" else encoded
    if encoded.ends is not None:
        count.add_ends(encoded.ends.of(encoded.row), rows)
    count.dropped["unsupervised"] = encoded.unsupervised
    if encoder.extra == "loss_mask":
        count.unsupervised = count.read - count.dropped["overlong"] - len(np.unique(encoded.row))
    count.rows, count.tokens, count.longest = len(encoded.sizes), len(encoded.ids), int(encoded.sizes.max(initial=0))
    np.save(out.path / "input_ids.npy", encoded.ids)
    np.save(out.path / "lengths.npy", encoded.sizes.astype(np.int32))
    np.save(out.path / f"{encoder.extra}.npy", encoded.extra)
    if encoded.types is not None:
        np.save(out.path / TYPES_FILE, encoded.types)
    np.save(out.path / "source_row.npy", encoded.row.astype(np.int64))
    np.save(out.path / "source_tokens.npy", encoded.lengths[encoded.row].astype(np.int32))
    return count.meta()


def _apart(rows: pa.Table, row: int) -> Example:
    """Return a row of which a prompt is encoded apart as an example that shows how its first prompt ends."""
    parts = rows.column("parts")[row].as_py()
    last = next(number for number, part in enumerate(parts, 1) if part["ends_prompt"])
    return Example.of(rows, row, f"a prompt ends in {''.join(part['text'] for part in parts[:last])[-12:]!r}")


@stage(
    kind="tokens",
    role="tokens",
    inputs=_inputs,
    split=split_texts,
    part=tokenize_rows,
    keep_parts=True,
    foresee=foresee,
    needs=needs,
)
def tokenize_text(
    config: TokenizeConfig, texts: Input[TextsMeta], model: Source, parts: Parts, out: Workdir
) -> TokensMeta:
    """Write a folder for each split, and `tokenizer/`.

    Files: `input_ids.npy` int32 [tokens], `offsets.npy` int64 [rows + 1], `labels.npy` int32 [rows or tokens] or float32 [rows,
    outputs] or `loss_mask.npy` uint8 [tokens], `source_row.npy` int64 [rows], `source_tokens.npy` int32 [rows] (before any cut);
    of rows with two texts `token_types.npy` uint8 [tokens]; of marked answers `labels.npy`, too.
    """
    special: SpecialIds = read_json(parts.shared / "special.json")
    shutil.copytree(parts.shared / "tokenizer", out.path / "tokenizer", copy_function=shutil.copyfile)
    counts = {split: _gathered(split, texts, parts, out, config.max_length) for split in in_order(texts.meta["splits"])}
    dropped = {
        reason: total
        for reason in ("overlong", "unsupervised")
        if (total := sum(count.dropped[reason] for count in counts.values()))
    }
    _remark(config, texts, out)
    side = read_object(out.path / "tokenizer" / TOKENIZER_CONFIG)["truncation_side"]
    examples = report(config.max_length, config.overlong, counts, dropped, out, side)
    is_language = not kind_of(texts.meta["task"]).per_row
    ends = _ends(config, texts.meta, counts, out.path / "tokenizer") if is_language else {}
    write_template(out.path / "tokenizer", texts.meta, texts.path / f"{next(iter(counts))}.parquet")
    if is_answered(texts.meta):
        examples |= report_ends(config.max_length, counts, out)
    lengths = {split: row_lengths(out.path / split) for split in counts}
    overlong = {split: count.overlong for split, count in counts.items()}
    truncated = overlong if config.overlong == "truncate" else dict.fromkeys(counts, 0)
    unsupervised = {split: count.unsupervised for split, count in counts.items()}
    lost = {
        "rows_truncated": sum(truncated.values()), "rows_unsupervised": sum(unsupervised.values()),
        "answers_cut": sum(ends.get("cut_answers", {}).values()), "rows_apart": sum(count.apart for count in counts.values()),
    }  # fmt: skip
    meta: TokensMeta = {
        "task": texts.meta["task"],
        "labels": texts.meta["labels"],
        "splits": {split: count.rows for split, count in counts.items()},
        "tokens": {split: count.tokens for split, count in counts.items()},
        "longest": max(count.longest for count in counts.values()),
        "vocab_size": special["vocab_size"],
        "pad_id": special["pad_id"],
        "bos_id": special["bos_id"],
        "eos_id": special["eos_id"],
        "max_length": config.max_length,
        "overlong": overlong,
        "truncated": truncated,
        "unsupervised": unsupervised,
        "dropped": dropped,
        "examples": examples,
        "row_lengths": lengths,
        "metrics": {
            "tokens": sum(count.tokens for count in counts.values()),
            "vocab_size": special["vocab_size"],
            **{name: rows for name, rows in lost.items() if rows},
            **next(iter(lengths.values()))["percentiles"],
        },
        **ends,  # type: ignore[typeddict-item]  # mypy fears other keys in it
    }
    _add_optional(meta, special, texts.meta)
    return meta


def _remark(config: TokenizeConfig, texts: Input[TextsMeta], out: Workdir) -> None:
    """Warn of texts that the tokenizer can't tell apart, or reads otherwise in one split than in train."""
    kind, labels = kind_of(texts.meta["task"]), texts.meta["labels"] or []
    if not kind.per_row:
        return
    files = {split: texts.path / f"{split}.parquet" for split in in_order(texts.meta["splits"])}
    loaded = read_tokenizer(out.path / "tokenizer")
    if loaded.tokenizer.encode(TOGETHER).ids != loaded.tokenizer.encode(APART).ids:
        for remark in unlike_splits(files, "the text", None, ACCENTS):
            out.warn(remark)
    if kind.one_class and "train" in files:
        lost = lost_difference(files["train"], out.path / "train", labels, config.max_length, loaded.id_of("unk_token"))
        if lost:
            out.warn(lost)


def _add_optional(meta: TokensMeta, special: SpecialIds, texts: TextsMeta) -> None:
    if "new_tokens" in special:
        meta["new_tokens"] = special["new_tokens"]
    if head := texts.get("head"):
        meta["head"] = head
    elif reads_pairs(texts):
        meta["pair"] = True


def has_types(texts: TextsMeta) -> bool:
    """Return whether tokens have types: of which of two texts they are."""
    return kind_of(texts["task"]).pairs or reads_pairs(texts)


def reads_pairs(texts: TextsMeta) -> bool:
    """Return whether examples have several texts."""
    return bool(texts["rows"]["settings"].get(PAIR))


def _identity(config: TokenizeConfig, texts: Input[TextsMeta], out: Workdir) -> Meta:
    """Return what a shard's tokens depend on besides its rows."""
    shape: Meta = {name: texts.meta[name] for name in ("task", "framed", "templates") if name in texts.meta}
    if end_tokens := template_tokens(out.path / "tokenizer", texts.meta):
        shape["end_tokens"] = end_tokens
    params = {**shape, **keyed_params(config)}
    tokenizer = {path.name: sha256_file(path) for path in sorted((out.path / "tokenizer").iterdir())}
    # of a trained tokenizer its files count, not the training's settings
    del params["train"]
    return {"params": params, "inputs": {"tokenizer": tokenizer}}


def _gathered(split: str, texts: Input[TextsMeta], parts: Parts, out: Workdir, most: int) -> Count:
    """Write one split and return its counts. Raises DataError when no row is left. most: tokens of a text."""
    import numpy as np

    extra, kind = encoder_type(texts.meta["task"]).extra, kind_of(texts.meta["task"])
    extra_type = {"int32": "<i4", "float32": "<f4"}[kind.target_type] if kind.per_row else "|u1"
    of_rows = kind.reads_targets and not kind.per_position
    width = kind.target_shape(1, 1, len(texts.meta["labels"] or ()))[-1] if of_rows else None
    folder, total, count = out.path / split, texts.meta["splits"][split], Count()
    with ExitStack() as stack:
        ids = stack.enter_context(GrowingArray(folder / "input_ids.npy", "<i4"))
        offsets = stack.enter_context(GrowingArray(folder / "offsets.npy", "<i8"))
        extras = stack.enter_context(GrowingArray(folder / f"{extra}.npy", extra_type, width))
        source_row = stack.enter_context(GrowingArray(folder / "source_row.npy", "<i8"))
        of_shards = has_types(texts.meta) and not kind.marked
        types = stack.enter_context(GrowingArray(folder / TYPES_FILE, "|u1")) if of_shards else None
        source_tokens = stack.enter_context(GrowingArray(folder / "source_tokens.npy", "<i4"))
        offsets.append(np.zeros(1, dtype=np.int64))
        for _, here, meta in parts.of(split=split):
            offsets.append(np.cumsum(load_array(here / "lengths.npy"), dtype=np.int64) + ids.size)
            ids.append(load_array(here / "input_ids.npy"))
            extras.append(load_array(here / f"{extra}.npy"))
            if types is not None:
                types.append(load_array(here / TYPES_FILE))
            source_row.append(load_array(here / "source_row.npy") + count.read)
            source_tokens.append(load_array(here / "source_tokens.npy"))
            count.add(meta)
            out.progress(count.read, total, f"{split} rows")
    if count.rows == 0:
        raise DataError(f"the split {split} is empty: all its {total} rows were dropped", "raise tokenize.max_length")
    if kind.marked:
        _write_marks(texts.path / f"{split}.parquet", folder)
        count.tokens, count.longest = add_mismatched(folder, TYPES_FILE, most)
    return count


def is_answered(texts: TextsMeta) -> bool:
    """Return whether rows hold answers, whose end a language model learns."""
    return not kind_of(texts["task"]).per_row and texts["rows"]["settings"]["task"] != "text"


def _ends(config: TokenizeConfig, texts: TextsMeta, counts: dict[str, Count], folder: Path) -> EndsMeta:
    """Return how the answers of a language model's rows end. folder: of the tokenizer, in which end tokens become special."""
    train = counts.get("train", Count()).ends
    marked = mark_ends(folder, {int(number): answers for number, answers in train.items()})
    ends: EndsMeta = {"ends": marked, "pads": read_tokenizer(folder).pad_ids}
    if is_answered(texts):
        if cut := {split: count.cut for split, count in counts.items() if count.cut}:
            ends["cut_answers"] = cut
        # without add_eos, somebody wants no end
        if config.add_eos and (unended := {split: count.unended for split, count in counts.items() if count.unended}):
            ends["unended"] = unended
    return ends


def _write_marks(texts: Path, folder: Path) -> None:
    """Write the labels of the rows that were kept."""
    import numpy as np
    import pyarrow.parquet as pq

    marks = pq.read_table(texts, columns=["label"]).column("label").to_numpy()
    np.save(folder / "labels.npy", marks[load_array(folder / "source_row.npy")].astype(np.int32))


def _parts(split: str, texts: Input[TextsMeta], config: TokenizeConfig, identity: Meta) -> Iterator[Part]:
    """Yield a split's shards, identified by the digest of their rows."""
    import pyarrow.parquet as pq

    first = 0
    batches = pq.ParquetFile(texts.path / f"{split}.parquet", pre_buffer=False).iter_batches(BATCH)
    for rows in cut_shards(batches, config.shard_bytes):
        inputs = {**identity["inputs"], "rows": content_digest(rows)}
        yield Part({**identity, "inputs": inputs}, {"split": split, "first": first, "count": rows.num_rows})
        first += rows.num_rows


@lru_cache(maxsize=2)
def _encoder(folder: Path, config: str, texts: str) -> Encoder:
    """Return an encoder for a tokenizer's folder; config, texts: as JSON."""
    # cached in the process: reading a tokenizer takes as long as tokenising thousands of rows, and an encoder caches
    # words
    settings, meta, loaded = TokenizeConfig.model_validate_json(config), json.loads(texts), read_tokenizer(folder)
    encoder = encoder_type(meta["task"], pair=reads_pairs(meta))
    if issubclass(encoder, ClassEncoder):
        return encoder(loaded, settings.max_length, settings.overlong)
    return encoder(
        loaded,
        settings.max_length,
        settings.overlong,
        add_eos=settings.add_eos,
        framed=meta["framed"],
        templates=tuple(meta.get("templates", ())),
        end_tokens=tuple(template_tokens(folder, meta)),
    )
