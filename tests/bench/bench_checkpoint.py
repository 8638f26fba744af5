"""What checkpoints cost training: none, written beside it, and written while it waits; a model of BERT-base's size, on the CPU.

    python -m tests.bench.bench_checkpoint [--blocks 12] [--every 10] [--rows 8] [--length 128] [--layers 12]

110 M random parameters, engine native, fp32. One training: each block of `every` steps begins with a checkpoint of the next
kind in turn, so that what else the machine does falls on all alike. Clock and processor (all threads, what the kernel does
for the process included) are medians over the blocks of a kind. The state lies in a store in the temporary folder. Last, what
two checkpoints, one after the other, have in common, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.clock import Row, table
from tests.training.run_stage import Result, run_stage, traced_and_trained
from tests.training.toys import scratch, write_packed
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.store import partial_state
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.train import environ as train_environ

KINDS = ("none", "beside", "waiting")
GOAL = 0.05  # of a step's time
KEY = "b" * 64
BERT: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
}


@stage(kind="checkpoint", environ=train_environ)
def alternating(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """Training whose checkpoints are of each kind in turn; metrics say the processor's seconds, too."""
    from trnflow.tasks.training.checkpoint.saving import Saver

    saved = Saver.save

    def save(self: Saver, step: int, slices: Any, state: Meta, best: int = 0) -> None:
        self.wait()
        kind = KINDS[step // config.checkpoint_every % len(KINDS)]
        begun = time.perf_counter()
        if kind != "none":
            saved(self, step, slices, state, best)
        if kind == "waiting":
            self.wait()
            out.figures(write_seconds=time.perf_counter() - begun)

    def emit(event: Meta) -> None:
        out.emit({**event, "cpu": time.process_time(), "clock": time.perf_counter()})

    Saver.save = save  # type: ignore[method-assign]
    states = partial_state(str(out.path.parent / "store"), out.path.parent, KEY)
    return traced_and_trained(config, model, packed, Workdir(out.path, out.scratch, emit, states))


def packed(folder: Path, rows: int, length: int) -> Input:
    random = np.random.default_rng(0)
    ids = random.integers(5, 30522, (rows * 4, length))
    columns = {
        "input_ids": ids,
        "labels": random.integers(0, 2, rows * 4),
        "segment_ids": np.ones_like(ids),
        "position_ids": np.broadcast_to(np.arange(length), ids.shape),
    }
    return write_packed(folder, "classification", ["no", "yes"], {"train": {length: columns}}, vocabulary=30522)


def blocks(result: Result, every: int) -> dict[str, list[tuple[float, float]]]:
    """(clock, processor) of each block of a kind, seconds a step; the first block, which warms up, is left out."""
    said = {e["metrics"]["step"]: e for e in result.events if "loss" in e.get("metrics", {}).get("values", {})}
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for begin in range(every, max(said), every):
        one, other = said[begin], said[begin + every]
        spent = ((other["clock"] - one["clock"]) / every, (other["cpu"] - one["cpu"]) / every)
        found[KINDS[begin // every % len(KINDS)]].append(spent)
    return found


def in_common(folder: Path) -> tuple[int, int, int]:
    """Bytes of tensors in the newest checkpoint; of those that the one before has too; of files that it has too."""
    import torch

    from trnflow.tasks.training.checkpoint.shards import Reader

    states = partial_state(str(folder), folder, KEY)
    before, newest = (folder / "partial" / KEY / f"step-{step:09d}" for step in states.steps()[-2:])
    one, other = Reader(before), Reader(newest)
    sizes = {name: other.tensor(name).nbytes for name in other.names}
    equal = [name for name in other.names if torch.equal(one.tensor(name), other.tensor(name))]
    marks = [json.loads((step / "COMMIT").read_text()) for step in (before, newest)]
    files = [name for name, digest in marks[1].items() if marks[0].get(name) == digest]
    return sum(sizes.values()), sum(sizes[name] for name in equal), sum((newest / n).stat().st_size for n in files)


def rows_of(found: dict[str, list[tuple[float, float]]], every: int) -> list[Row]:
    medians = {
        kind: [statistics.median(column) for column in zip(*spent, strict=True)] for kind, spent in found.items()
    }
    rows = []
    for kind, (clock, cpu) in medians.items():
        bare, busy = medians["none"]
        note = f"clock {clock / bare - 1:+.1%}, cpu {cpu / busy - 1:+.1%}, that is {(cpu - busy) * every:.1f} s a checkpoint"
        rows.append(Row(kind, clock, cpu, bare * (1 + GOAL) if kind == "beside" else None, note=note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("blocks", 12), ("every", 10), ("rows", 8), ("length", 128), ("layers", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    from tests.bench.bench_checkpoint import alternating as function  # by its name: another process calls it

    config = TrainConfig(
        engine="native",
        global_batch=options.rows,
        epochs=10**6,
        max_steps=options.every * (options.blocks + 1),
        log_every=1,
        checkpoint_every=options.every,
        eval_every_epoch=False,
        keep_checkpoints=2,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = packed(folder / "packed", options.rows, options.length)
        model = scratch(**BERT, num_hidden_layers=options.layers)
        result = run_stage(function, config, folder / "run", model=model, packed=data)
        print(table(rows_of(blocks(result, options.every), options.every)))
        said = result.figures
        total, tensors, files = in_common(folder / "run" / "store")
    writes = [figures["write_seconds"] for figures in result.said("figures") if "write_seconds" in figures]
    print(f"a checkpoint: {said['checkpoint_bytes'] / 1e6:.0f} MB in {statistics.median(writes):.1f} s")
    print(f"memory at most {said['host_memory_bytes'] / 1e9:.1f} GB")
    print(f"the one before has {tensors / total:.2%} of its bytes, by tensors ({files} bytes by files)")


if __name__ == "__main__":
    main()
