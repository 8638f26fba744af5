"""Samples per second of engine native against HF Trainer with dynamic padding: same rows, model, batch and machine.

    python -m tests.bench.bench_train [--rows 1920] [--lengths 16,24,32,64] [--only ours|theirs] [--dtype float32]

The rows are emotion's, the model is MiniLM. Both train one epoch at batch 32; start-up, evaluation and saving are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from tests.conftest import PROJECT
from tests.training.toys import minilm, pretrained, write_packed

LABELS = ["sadness", "joy", "love", "anger", "fear", "surprise"]


def emotion(count: int) -> tuple[list[list[int]], list[int]]:
    """(token ids, labels) of the first `count` rows."""
    from tokenizers import Tokenizer

    shared = Path(os.environ.get("TRNFLOW_SHARED", PROJECT.parent / "shared"))
    table = parquet.read_table(shared / "data" / "emotion" / "train.parquet").slice(0, count)
    tokenizer = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    return [found.ids for found in tokenizer.encode_batch(table["text"].to_pylist())], table["label"].to_pylist()


def bucketed(folder: Path, rows: list[list[int]], labels: list[int], lengths: list[int]) -> Any:
    """A packed artifact with each row in the smallest length that holds it."""
    splits: dict[int, dict[str, np.ndarray]] = {}
    sizes = np.array([len(row) for row in rows])
    for low, length in zip([0, *lengths], lengths, strict=False):
        chosen = np.flatnonzero((sizes > low) & (sizes <= length))
        ids = np.zeros((len(chosen), length), np.int32)
        for at, row in enumerate(chosen):
            ids[at, : sizes[row]] = rows[row]
        real = np.arange(length)[None] < sizes[chosen, None]
        splits[length] = {
            "input_ids": ids,
            "labels": np.array(labels)[chosen],
            "segment_ids": real,
            "position_ids": np.where(real, np.arange(length)[None], 0),
        }
    return write_packed(folder, "classification", LABELS, {"train": splits}, vocabulary=30522)


def ours(folder: Path, rows: list[list[int]], labels: list[int], arguments: argparse.Namespace) -> dict[str, Any]:
    from tasks.precompile import precompile
    from tasks.train import TrainConfig, train
    from tests.training.run_stage import run_stage

    lengths = [int(length) for length in arguments.lengths.split(",")]
    lengths = [length for length in lengths if length < max(map(len, rows))] + [-(-max(map(len, rows)) // 8) * 8]
    packed = bucketed(folder / "packed", rows, labels, lengths)
    config = TrainConfig(
        engine="native", epochs=1, learning_rate=1e-4, dtype=arguments.dtype, compile=arguments.compile
    )
    inputs = {"model": pretrained(minilm()), "packed": packed}
    graphs = run_stage(precompile, config, folder / "graphs", **inputs)
    return run_stage(train, config, folder / "train", **inputs, graphs=graphs.artifact).figures


def theirs(folder: Path, rows: list[list[int]], labels: list[int]) -> dict[str, Any]:
    """HF Trainer as most people run it: DataCollatorWithPadding, fused AdamW, no evaluation."""
    import torch
    from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments
    from transformers import PreTrainedTokenizerFast as Tokenizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = Tokenizer(tokenizer_file=str(minilm() / "tokenizer.json"), pad_token="[PAD]")
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=6, dtype=torch.float32)
    data = [{"input_ids": ids, "labels": label} for ids, label in zip(rows, labels, strict=True)]
    arguments = TrainingArguments(
        str(folder / "hf"),
        num_train_epochs=1,
        per_device_train_batch_size=32,
        learning_rate=1e-4,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data, data_collator=DataCollatorWithPadding(tokenizer))
    return dict(trainer.train().metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1920)
    parser.add_argument("--lengths", default="16,24,32,48")
    parser.add_argument("--only", choices=["ours", "theirs"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, labels = emotion(arguments.rows)
        if arguments.only == "theirs":
            print(json.dumps(theirs(Path(folder), rows, labels)))
            return
        mine = ours(Path(folder), rows, labels, arguments)
        print(
            f"trnflow native  {mine['samples_per_second']:7.1f} samples/s",
            {k: mine[k] for k in ("seconds", "compile_seconds")},
        )
        if arguments.only is None:
            command = [
                sys.executable,
                "-m",
                "tests.bench.bench_train",
                "--only",
                "theirs",
                "--rows",
                str(arguments.rows),
            ]
            environment = {**os.environ, "USE_TORCH_XLA": "0"}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=PROJECT)
            rate = json.loads(done.stdout.splitlines()[-1])["train_samples_per_second"]
            print(f"HF Trainer      {rate:7.1f} samples/s, ratio {mine['samples_per_second'] / rate:.2f}")


if __name__ == "__main__":
    main()
