"""Pairs of answers, and what the data stages make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.helpers.data_stages import Bench
from tests.training.toys import LLAMA, pretrained
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.chunks import open_chunks, open_segments
from trnflow.tasks.training.batches.sampler import BatchAddress

NAMES = ("the baker", "an old sailor", "my neighbour", "a tired nurse", "the king of a very small country")
GOOD = ("Of course, gladly.", "Yes, and here is how it is done, step by step, with care.", "Please sit down first.")
BAD = ("No.", "I will not say a word about that to anybody, ever, go away!", "What?", "Ask somebody else, then.")


def rows_of(count: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"Question {number}: what does {NAMES[number % 5]} say?\n",
            "chosen": GOOD[number % 3] + f" {number % 7}",
            "rejected": BAD[number % 4] + f" {number % 5}",
        }
        for number in range(count)
    ]


def marked_rows_of(count: int) -> list[dict[str, Any]]:
    """Every third answer is undesirable."""
    return [
        {
            "prompt": row["prompt"],
            "completion": row["rejected" if number % 3 == 2 else "chosen"],
            "label": number % 3 != 2,
        }
        for number, row in enumerate(rows_of(count))
    ]


def packed_preferences(
    folder: Path,
    rows: list[dict[str, Any]] | None = None,
    pack: dict[str, Any] | None = None,
    most: int = 64,
    task: str = "preference",
    **format: Any,
) -> tuple[Input, list[dict[str, Any]]]:
    """The rows through the data stages, by default several pairs a chunk, and those of train; a tokenizer is trained on them."""
    bench = Bench(folder, [])
    (folder / "rows").mkdir(parents=True)
    (folder / "rows/train.jsonl").write_text("\n".join(map(json.dumps, rows or rows_of(120))))
    loaded = bench.rows(source=str(folder / "rows"), split={"validation": 0.2})
    texts = bench.texts(loaded, task=task, **format)
    trains = {"kind": "bpe", "vocab_size": 300}
    tokens = bench.tokens(texts, {"config": {"model_type": "llama"}}, max_length=most, train=trains)
    packed = bench.packed(tokens, **(pack or {"strategy": "bfd", "chunk_length": 256}))
    written = pq.read_table(texts.path / "train.parquet").to_pylist()
    answers = ("completion", "label") if "label" in written[0] else ("chosen", "rejected")
    train = [
        {
            "prompt": row["parts"][0]["text"],
            answers[0]: row["parts"][1]["text"],
            answers[1]: bool(row["label"]) if "label" in row else row["rejected"][1]["text"],
        }
        for row in written
    ]
    return packed, train


def started(folder: Path, packed: Input, architecture: str = "LlamaForCausalLM", **settings: Any) -> Source:
    """A model with weights, in `folder`. settings: of its config.json."""
    import torch
    import transformers

    torch.manual_seed(1)
    torch.set_num_threads(1)  # so small a model waits for threads
    fields = {**LLAMA, "max_position_embeddings": 512, "initializer_range": 0.2, **settings}
    del fields["model_type"]
    special = {f"{name}_token_id": packed.meta[f"{name}_id"] for name in ("bos", "eos", "pad")}
    config = transformers.LlamaConfig(**fields, **special, vocab_size=packed.meta["vocab_size"])
    getattr(transformers, architecture)(config).save_pretrained(folder)
    return pretrained(folder)


def pairs_of(packed: Input, address: BatchAddress, split: str = "train") -> list[int]:
    """The row of format_prompts of each pair of a batch."""
    found = []
    for length, chunks in address.unmasked_rows().items():
        counts = open_chunks(packed, split, length)["segment_ids"].max(1) // 2
        ends, sources = np.cumsum(counts), open_segments(packed, split, length)[:, 0]
        found += [int(row) for chunk in chunks for row in sources[ends[chunk] - counts[chunk] : ends[chunk]]]
    return found
