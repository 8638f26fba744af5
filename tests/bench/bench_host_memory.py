"""What each of four ranks reads of a Llama, and the memory that it takes until they are placed and in its first update: in MB.

python -m tests.bench.bench_host_memory [layers]    16 layers: 0.99 B parameters, 2 GB in bf16
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.training.counted_reads import Counting, count_reads
from tests.training.run_stage import run_stage, traced_and_trained
from tests.training.toys import packed_lm, pretrained
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, ranks
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training import fit

SIZES = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
LAYOUTS = {"fsdp": {"fsdp": True}, "tensor parallel": {"tensor_parallel_size": 4}}


def resident() -> dict[str, int]:
    """MB of this process: in all, and without files that are mapped."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) // 1000 for name in ("VmRSS", "RssAnon")}


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def measured(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    import torch

    torch.ones(64, 64) @ torch.ones(64, 64)  # starts the threads
    count_reads()
    first = resident()
    peak = dict(first)

    def watch() -> None:
        while True:
            peak.update({name: max(peak[name], value) for name, value in resident().items()})
            time.sleep(0.005)

    made = fit.make_engine
    placed: dict[str, int] = {}

    def make_engine(*args: Any, **options: Any) -> Any:
        engine = made(*args, **options)
        placed.update(peak)
        return engine

    fit.make_engine = make_engine
    threading.Thread(target=watch, daemon=True).start()
    meta = traced_and_trained(config, model, packed, out)
    document = {"read": Counting.read // 10**6}
    for when, most in (("placed", placed), ("trained", peak)):
        document |= {f"{name} until {when}": most[name] - first[name] for name in first}
    (out.path / f"measured-{os.environ['RANK']}").write_text(json.dumps(document))
    return meta


def save(folder: Path, layers: int) -> Source:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": layers, "vocab_size": 4096, "max_position_embeddings": 512}
    config = transformers.AutoConfig.for_model("llama", **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} B parameters")
    model.save_pretrained(folder, max_shard_size="500MB")
    return pretrained(folder)


def main(layers: int) -> None:
    lora = {"method": "lora", "lora": {"rank": 4, "targets": "all-linear"}}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model, packed = save(folder / "model", layers), packed_lm(folder / "packed", rows=4, validation=4)
        size = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
        print(f"{size // 10**6} MB of weights")
        for name, layout in LAYOUTS.items():
            config = TrainConfig(
                engine="native", dtype="bfloat16", devices=4, global_batch=4, max_steps=1, **lora, **layout
            )
            begun = time.monotonic()
            found = run_stage(measured, config, folder / "run", model=model, packed=packed)
            print(name, f"{time.monotonic() - begun:.0f} s, losses", found.curve("loss"), found.curve("eval_loss"))
            for file in sorted(found.artifact.path.glob("measured-*")):
                print("  rank", file.name[-1], file.read_text())


if __name__ == "__main__":
    # ranks import the stage by its module's name
    from tests.bench import bench_host_memory

    bench_host_memory.main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
