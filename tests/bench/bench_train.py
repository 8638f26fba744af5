"""Both engines beside HF Trainer and TRL: the same rows, model, batch and machine, one epoch; samples, tokens a second, memory.

    python -m tests.bench.bench_train [--rows 960] [--documents 96] [--rounds 1] [--work emotion,dolly] [--ways native,xla]

emotion: classification with the pretrained MiniLM, batches of 32 rows, in the lengths that `pack_chunks` chooses by default, and
with `group_by_length`.
dolly: instructions for a Llama of 12 M random parameters, packed into rows of 512, 8 a batch; the Trainer, which does not
pack, gets as many documents a batch as 8 packed rows hold. The Trainer pads to the longest row of each batch, which it
draws at random or by length. TRL (`make clients`) packs as we do (bfd), or joins and cuts (wrapped). Start-up, evaluation,
saving and steps that compile are left out. Tokens are those that are not padding; memory is what each process had resident
at most. On the CPU, in fp32, each way in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as parquet

from tests.conftest import PROJECT
from tests.training.toys import LLAMA_12M, minilm, pretrained, scratch, write_packed
from trnflow.tasks.artifact import Input, Source

LABELS = ["sadness", "joy", "love", "anger", "fear", "surprise"]
CHUNK, CHUNKS = 512, 8
SHARED = Path(os.environ.get("TRNFLOW_SHARED", PROJECT.parent / "shared"))
THEIRS = {"random": "random", "by-length": "group_by_length", "trl-bfd": "bfd", "trl-wrapped": "wrapped"}


class Rows(NamedTuple):
    """ids: tokens of each row; labels: of each, or None where each token is to be predicted."""

    ids: list[list[int]]
    labels: list[int] | None
    vocabulary: int

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))


class Rates(NamedTuple):
    samples: float
    tokens: float
    memory: int


def emotion(count: int) -> Rows:
    table = parquet.read_table(SHARED / "data" / "emotion" / "train.parquet").slice(0, count)
    return Rows(_encoded(minilm(), table["text"].to_pylist(), 128), table["label"].to_pylist(), 30522)


def dolly(count: int) -> Rows:
    table = parquet.read_table(SHARED / "data" / "dolly15k" / "train.parquet").slice(0, count)
    texts = ["\n".join(str(part) for part in row.values()) for row in table.to_pylist()]
    return Rows(_encoded(SHARED / "assets" / "stories260K-hf", texts, CHUNK), None, 512)


def bucketed(folder: Path, rows: Rows) -> Input:
    """A packed artifact with each row in the smallest length that holds it."""
    from trnflow.tasks.data.pack.packers import bucket_lengths

    sizes = np.array(list(map(len, rows.ids)))
    lengths = bucket_lengths(sizes, 128, 4)
    splits: dict[int, dict[str, np.ndarray]] = {}
    for low, length in zip([0, *lengths], lengths, strict=False):
        chosen = np.flatnonzero((sizes > low) & (sizes <= length))
        real = np.arange(length)[None] < sizes[chosen, None]
        ids = np.zeros((len(chosen), length), np.int32)
        ids[real] = np.concatenate([rows.ids[row] for row in chosen])
        positions = np.where(real, np.arange(length)[None], 0)
        labels = np.array(rows.labels)[chosen]
        splits[length] = {"input_ids": ids, "labels": labels, "segment_ids": real, "position_ids": positions}
    return write_packed(folder, "classification", LABELS, {"train": splits}, vocabulary=rows.vocabulary)


def packed(folder: Path, rows: Rows) -> Input:
    """A packed artifact of dense rows, as `pack_chunks` makes them."""
    from trnflow.tasks.data.pack.packers import best_fit, whole_rows

    layout = best_fit(whole_rows(np.cumsum([0, *map(len, rows.ids)])), CHUNK)
    ids, segments, positions = (np.zeros((layout.chunks, CHUNK), np.int32) for _ in range(3))
    for row, chunk, offset in zip(layout.pieces.row, layout.chunk, layout.offset, strict=True):
        place = (chunk, slice(offset, offset + len(rows.ids[row])))
        ids[place], positions[place] = rows.ids[row], np.arange(len(rows.ids[row]))
        segments[place] = segments[chunk].max() + 1
    labels = np.where(segments > 0, ids, -100)
    columns = {"input_ids": ids, "labels": labels, "segment_ids": segments, "position_ids": positions}
    return write_packed(folder, "causal_lm", None, {"train": {CHUNK: columns}}, vocabulary=rows.vocabulary)


def ours(engine: str, rows: Rows, folder: Path) -> Rates:
    from tests.training.run_stage import run_stage, traced_and_trained
    from trnflow.tasks.train import TrainConfig

    source: Source = pretrained(minilm()) if rows.labels else scratch(**LLAMA_12M)
    data = bucketed(folder / "packed", rows) if rows.labels else packed(folder / "packed", rows)
    batch = 32 if rows.labels else CHUNKS
    config = TrainConfig(engine=engine, epochs=1, learning_rate=1e-4, global_batch=batch, group_by_length=True)
    said = run_stage(traced_and_trained, config, folder / "train", model=source, packed=data).figures
    tokens = said["real_tokens_per_second"]
    return Rates(tokens * len(rows.ids) / rows.tokens, tokens, said["host_memory_bytes"])


def theirs(way: str, work: str, arguments: argparse.Namespace) -> Rates:
    command = [sys.executable, "-m", "tests.bench.bench_train", "--theirs", way, "--work", work]
    command += ["--rows", str(arguments.rows), "--documents", str(arguments.documents)]
    environment = {**os.environ, "USE_TORCH_XLA": "0", "PYTHONPATH": str(PROJECT / ".clients" / "trl")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=PROJECT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return Rates(*json.loads(done.stdout.splitlines()[-1]))


def trainer(way: str, rows: Rows, folder: Path) -> Rates:
    """HF Trainer as most people run it: a padding collator, fused AdamW, no evaluation; or TRL's with packing."""
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    columns = {"input_ids": rows.ids, **({"labels": rows.labels} if rows.labels else {})}
    data = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    settings: dict[str, Any] = {
        "output_dir": str(folder), "num_train_epochs": 1, "learning_rate": 1e-4, "save_strategy": "no", "report_to": "none",
        "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    model, collator = _model_and_collator(rows)
    if way.startswith("trl"):
        made = _packing(model, collator.tokenizer, data, {**settings, "packing_strategy": THEIRS[way]})
    else:
        settings["per_device_train_batch_size"] = 32 if rows.labels else _documents_a_batch(rows)
        arguments = transformers.TrainingArguments(train_sampling_strategy=THEIRS[way], **settings)
        made = transformers.Trainer(model, arguments, train_dataset=data, data_collator=collator)
    seconds = made.train().metrics["train_runtime"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Rates(len(rows.ids) / seconds, rows.tokens / seconds, memory)


def _packing(model: Any, tokenizer: Any, data: list[dict[str, Any]], settings: dict[str, Any]) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        packing=True,
        max_length=CHUNK,
        per_device_train_batch_size=CHUNKS,
        gradient_checkpointing=False,
        bf16=False,
        **settings,
    )
    return SFTTrainer(model, arguments, train_dataset=Dataset.from_list(data), processing_class=tokenizer)


def _model_and_collator(rows: Rows) -> tuple[Any, Any]:
    import torch
    import transformers

    folder = minilm() if rows.labels else SHARED / "assets" / "stories260K-hf"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    if rows.labels:
        tokenizer.pad_token = "[PAD]"
        model = transformers.AutoModelForSequenceClassification
        loaded = model.from_pretrained(folder, num_labels=len(LABELS), dtype=torch.float32)
        return loaded, transformers.DataCollatorWithPadding(tokenizer)
    tokenizer.pad_token = "<unk>"
    config = transformers.AutoConfig.for_model(**LLAMA_12M, vocab_size=rows.vocabulary, attn_implementation="sdpa")
    made = transformers.AutoModelForCausalLM.from_config(config)
    return made, transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)


def _documents_a_batch(rows: Rows) -> int:
    """As many as fill CHUNKS packed rows."""
    return max(1, round(CHUNKS * CHUNK * len(rows.ids) / rows.tokens))


def _encoded(folder: Path, texts: list[str], most: int) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(most)
    return [found.ids for found in tokenizer.encode_batch(texts)]


def compare(work: str, rows: Rows, arguments: argparse.Namespace) -> None:
    """Round by round, so that a machine that slows down slows all ways down; medians."""
    print(f"\n{work}: {len(rows.ids)} rows, {rows.tokens} tokens")
    ways = [way for way in arguments.ways.split(",") if not (rows.labels and way.startswith("trl"))]
    rounds = [{way: measured(way, work, rows, arguments) for way in ways} for _ in range(arguments.rounds)]
    found = {way: Rates(*map(median, zip(*(one[way] for one in rounds), strict=True))) for way in ways}
    for way, rate in found.items():
        name = way if way.startswith("trl") else f"HF Trainer {way}" if way in THEIRS else f"trnflow {way}"
        print(f"{name:22} {rate.samples:8.1f} samples/s {rate.tokens:9.0f} tokens/s {rate.memory / 2**20:7.0f} MiB")
    for way in [way for way in ways if way not in THEIRS]:
        ratios = [f"{found[way].tokens / found[other].tokens:.2f} x {other}" for other in ways if other in THEIRS]
        print(f"{way}: {', '.join(ratios)}")


def measured(way: str, work: str, rows: Rows, arguments: argparse.Namespace) -> Rates:
    if way in THEIRS:
        return theirs(way, work, arguments)
    with tempfile.TemporaryDirectory() as folder:
        return ours(way, rows, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=960)
    parser.add_argument("--documents", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", default="emotion,dolly")
    parser.add_argument("--ways", default="native,xla,random,by-length,trl-bfd,trl-wrapped")
    parser.add_argument("--theirs", choices=THEIRS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    made = {"emotion": lambda: emotion(arguments.rows), "dolly": lambda: dolly(arguments.documents)}
    for work in arguments.work.split(","):
        rows = made[work]()
        if arguments.theirs is None:
            compare(work, rows, arguments)
        else:
            with tempfile.TemporaryDirectory() as folder:
                print(json.dumps(trainer(arguments.theirs, rows, Path(folder))))


if __name__ == "__main__":
    main()
