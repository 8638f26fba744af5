"""Engine native on a GPU beside what people use there: tokens per second, MFU, and peak memory against the estimate.

    python -m tests.bench.gpu [--cases llama,packed,lora,qlora,bert] [--ways NAME,...] [--steps 24] [--toy]

llama: all weights of a Llama of 1.1 B parameters (TinyLlama's sizes), 8 rows of 2,048 tokens. packed: the same rows hold
eight documents each. lora, qlora: rank 16 in every linear layer, on a base in bf16 or nf4. bert: BERT-base, 64 rows of
emotion. Weights are random, and the same for each way; bf16, AdamW, clipping. Each way has a process of its own; the
first third of its steps, which compile, does not count. MFU: 6 FLOPs a weight and token (4 with a frozen base), and
attention's within a document. --toy runs every line on the CPU. A program that is not installed says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.bench import gpu_peers
from tests.training.run_stage import PROJECT, run_stage, traced_and_trained
from tests.training.toys import pretrained, write_packed
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, environ, ranks

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "vocab_size": 32000,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
BERT: dict[str, Any] = {"model_type": "bert", "vocab_size": 30522}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
LORA = {"rank": 16, "alpha": 32, "dropout": 0.0}


class Case(NamedTuple):
    """What is trained. documents: in each row; method: full, lora or qlora."""

    model: dict[str, Any]
    rows: int
    length: int
    documents: int = 1
    method: str = "full"


CASES = {
    "llama": Case(LLAMA, 8, 2048),
    "packed": Case(LLAMA, 8, 2048, documents=8),
    "lora": Case(LLAMA, 8, 2048, method="lora"),
    "qlora": Case(LLAMA, 8, 2048, method="qlora"),
    "bert": Case(BERT, 64, 128),
}
OURS: dict[str, dict[str, Any]] = {
    "trnflow": {},
    "trnflow compile": {"compile": True},
    "trnflow compile any-kernels": {"compile": True, "deterministic": False},
}


def case_of(arguments: argparse.Namespace) -> Case:
    case = CASES[arguments.case]
    if not arguments.toy:
        return case
    heads = {"num_key_value_heads": 2} if case.model is LLAMA else {}
    return case._replace(model={**case.model, **SMALL, **heads}, rows=4, length=64)


def columns(case: Case, batches: int = 4) -> dict[str, np.ndarray]:
    """Packed rows. Those of a classifier are as long as tweets are, from 5 to `length` tokens."""
    random = np.random.default_rng(0)
    count, length = case.rows * batches, case.length
    at, ids = np.arange(length)[None], random.integers(5, case.model["vocab_size"], (count, length))
    if case.model["model_type"] == "bert":
        sizes = np.clip(random.lognormal(3.0, 0.5, (count, 1)), 5, length).astype(int)
        real = at < sizes
        labels = random.integers(0, 6, count)
        return {"input_ids": ids * real, "labels": labels, "segment_ids": real, "position_ids": at * real}
    size = -(-length // case.documents)
    segments, positions = (np.broadcast_to(part, ids.shape) for part in (at // size + 1, at % size))
    return {"input_ids": ids, "labels": ids, "segment_ids": segments, "position_ids": positions}


def make_model(case: Case, folder: Path, device: str) -> None:
    """Write a model of random weights, in bf16."""
    import torch
    from safetensors.torch import save_file

    config, kind = gpu_peers.model_class(case.model)
    with torch.device("meta"):
        blank = kind.from_config(config)
    torch.manual_seed(0)
    weights = {
        name: torch.ones(p.shape, dtype=torch.bfloat16)
        if p.dim() == 1 and "norm" in name.lower() and name.endswith("weight")
        else torch.empty(p.shape, dtype=torch.bfloat16, device=device).normal_(std=0.02).cpu()
        for name, p in blank.named_parameters()
    }
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures, config.dtype = [type(blank).__name__], "bfloat16"
    config.save_pretrained(folder)


@stage(kind="checkpoint", environ=environ, ranks=ranks)
def trained(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """`traced_and_trained` without the weights, which would be written for as long as the steps take."""
    from trnflow.tasks.training import fit

    fit._write_weights = lambda run: None
    return traced_and_trained(config, model, packed, out)


def ours(
    case: Case, fields: dict[str, Any], model: Path, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    from tests.bench.gpu import trained  # not of __main__: another process imports it

    source, packed, config = work(case, fields, model, folder, arguments)
    found = run_stage(trained, config, folder / "train", model=source, packed=packed)
    said = [point for point in found.said("metrics") if "loss" in point["values"]]
    first, last = said[0], said[-1]
    return {
        "seconds": (last["time"] - first["time"]) / (last["step"] - first["step"]),
        "memory": found.figures.get("device_memory_bytes", 0),
        "loss": found.artifact.meta["metrics"]["train_loss"],
    }


def work(
    case: Case, fields: dict[str, Any], model: Path, folder: Path, arguments: argparse.Namespace
) -> tuple[Source, Input, TrainConfig]:
    causal = case.model["model_type"] == "llama"
    packed = write_packed(
        folder / "packed",
        "causal_lm" if causal else "classification",
        None if causal else [str(label) for label in range(6)],
        {"train": {case.length: columns(case)}},
        vocabulary=case.model["vocab_size"],
    )
    if case.method != "full":
        base = {"base_dtype": "nf4"} if case.method == "qlora" else {}
        fields = {**fields, "method": "lora", "lora": {**LORA, **base, "targets": gpu_peers.TARGETS}}
    config = TrainConfig(
        engine="native",
        device=arguments.device,
        global_batch=case.rows,
        max_steps=arguments.steps,
        dtype="bfloat16",
        log_every=arguments.steps // 3,
        checkpoint_every=10**6,
        eval_every_epoch=False,
        allow_overcommit=True,
        **fields,
    )
    return pretrained(model), packed, config


def estimate(case: Case, model: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the plan says that training without compiling takes."""
    from trnflow.tasks.training.memory.traced_memory import trace_memory

    source, packed, config = work(case, {}, model, folder, arguments)
    return {"total": trace_memory(config, source, packed.meta).total}


def flops(case: Case) -> float:
    """Return the FLOPs of an update that have to be computed."""
    import torch

    config, kind = gpu_peers.model_class(case.model)
    with torch.device("meta"):
        model = kind.from_config(config)
    lookups = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    weights = sum(p.numel() for p in model.parameters() if id(p) not in lookups)
    data = columns(case)
    causal, passes = case.model["model_type"] == "llama", 3 if case.method == "full" else 2
    sizes = np.full(case.rows * case.documents, case.length // case.documents)
    tokens = case.rows * case.length
    if not causal:
        sizes = data["segment_ids"][: case.rows].sum(1)
        tokens = int(data["segment_ids"].sum()) // 4
    pairs = float((sizes.astype(float) ** 2).sum()) / (2 if causal else 1)
    # the backward pass of attention is computed for a frozen base, too
    return 2 * passes * weights * tokens + 3 * 4 * config.num_hidden_layers * config.hidden_size * pairs


def inner(arguments: argparse.Namespace) -> None:
    """Run one way in this process."""
    case, model = case_of(arguments), Path(arguments.model)
    if arguments.way == "make":
        return make_model(case, model, arguments.device)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.way == "estimate":
            found = estimate(case, model, Path(folder), arguments)
        elif arguments.way in OURS:
            found = ours(case, OURS[arguments.way], model, Path(folder), arguments)
        else:
            way = gpu_peers.WAYS[arguments.way]
            given = (case, model, Path(folder), columns(case), arguments.device, arguments.steps, way.settings)
            found = way.run(gpu_peers.Work(*given))
        print(json.dumps(found))
    return None


def call(arguments: argparse.Namespace, name: str, way: str, model: Path) -> dict[str, Any] | str:
    """Run one way in a process of its own; return what it found, or why it could not."""
    command = [sys.executable, "-m", "tests.bench.gpu", "--case", name, "--way", way, "--model", str(model)]
    command += ["--steps", str(arguments.steps), *["--toy"][: arguments.toy]]
    environment = {**os.environ, "USE_TORCH_XLA": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=PROJECT, check=False)
    if done.returncode:
        return "failed: " + " | ".join(done.stderr.strip().splitlines()[-3:])[-400:]
    return json.loads(done.stdout.splitlines()[-1]) if way != "make" else {}


def compare(arguments: argparse.Namespace, name: str, folder: Path) -> None:
    import torch

    from trnflow.tasks.training.device_kinds import KINDS

    arguments.case, case = name, case_of(argparse.Namespace(case=name, toy=arguments.toy))
    label = torch.cuda.get_device_name() if arguments.device == "cuda" else "this processor, a toy"
    print(f"\n{name}: {case.rows} rows of {case.length}, {case.documents} documents each, on {label}", flush=True)
    model = (Path(arguments.model) if arguments.model else folder) / case.model["model_type"]
    if not model.exists() and isinstance(said := call(arguments, name, "make", model), str):
        return print(said)
    needed, peak, rates = flops(case), KINDS["cuda"].peak_flops(label), dict[str, float]()
    planned = ThreadPoolExecutor(1).submit(call, arguments, name, "estimate", model)
    for way in arguments.ways or [*OURS, *(way for way, peer in gpu_peers.WAYS.items() if name in peer.cases)]:
        found = call(arguments, name, way, model)
        if isinstance(found, str):
            print(f"{way:<30} {found}", flush=True)
            continue
        rates[way] = case.rows / found["seconds"]
        share = f"MFU {needed / found['seconds'] / peak:.3f}" if peak else ""
        print(
            f"{way:<30} {rates[way] * case.length:9.0f} tokens/s {found['seconds'] * 1e3:8.1f} ms a step  {share}  "
            f"{found['memory'] / 2**30:.2f} GiB  loss {found['loss']:.4f}",
            flush=True,
        )
    said = planned.result()
    print(f"the memory estimate: {said['total'] / 2**30:.2f} GiB" if isinstance(said, dict) else said, flush=True)
    best = max((rate for way, rate in rates.items() if way not in OURS), default=0.0)
    if best:
        print(
            "against the best of them:", {way: round(rates[way] / best, 2) for way in rates if way in OURS}, flush=True
        )
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=[*CASES])
    parser.add_argument("--ways", type=lambda text: text.split(","))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--toy", action="store_true")
    for hidden in ("--case", "--way", "--model"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.device = "cpu" if arguments.toy else "cuda"
    if arguments.way:
        return inner(arguments)
    import torch
    import transformers

    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.cases:
            compare(arguments, name, Path(folder))
    return None


if __name__ == "__main__":
    main()
