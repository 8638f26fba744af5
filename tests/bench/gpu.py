"""Tokens per second and MFU of engine native on a GPU beside HF Trainer: same card, model, shapes and batch, one run.

    python -m tests.bench.gpu [--model llama|roberta] [--batch 8] [--length 2048] [--steps 40] [--documents 1] [--only NAME ...]

Random weights (Llama of 1.1 B parameters, TinyLlama's sizes; RoBERTa-large's sizes) and random tokens, without padding;
bf16 with fp32 masters on both sides, AdamW, clipping. Each way runs in a process of its own; the first third of its
steps (compiling, warming up) does not count. FLOPs are 6 a weight and token and 12 x layers x width x length a token.
Needs PyTorch, transformers, accelerate, and pydantic for this package itself. documents: packed into each row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.training.run_stage import PROJECT, Result, run_stage, traced_and_trained
from tests.training.toys import scratch, write_packed

MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
    },
    "roberta": {
        "model_type": "roberta",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "max_position_embeddings": 514,
    },
}
VOCABULARY = {"llama": 32000, "roberta": 50265}
OURS = {"trnflow": {}, "trnflow compile": {"compile": True}, "trnflow flex": {"attention": "flex"}}
THEIRS = {"HF Trainer": {}, "HF Trainer compile": {"torch_compile": True}}
WARM = 3  # a third of the steps


def columns(arguments: argparse.Namespace) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    rows, length = arguments.batch * 4, arguments.length
    ids = random.integers(5, VOCABULARY[arguments.model], (rows, length))
    at, size = np.arange(length)[None], -(-length // arguments.documents)
    labels = ids if arguments.model == "llama" else random.integers(0, 2, rows)
    segments, positions = np.broadcast_to(at // size + 1, ids.shape), np.broadcast_to(at % size, ids.shape)
    return {"input_ids": ids, "labels": labels, "segment_ids": segments, "position_ids": positions}


def ours(arguments: argparse.Namespace, fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    from trnflow.tasks.train import TrainConfig

    causal = arguments.model == "llama"
    packed = write_packed(
        folder / "packed",
        "causal_lm" if causal else "classification",
        None if causal else ["negative", "positive"],
        {"train": {arguments.length: columns(arguments)}},
        vocabulary=VOCABULARY[arguments.model],
    )
    config = TrainConfig(
        engine="native",
        device="cuda",
        global_batch=arguments.batch,
        max_steps=arguments.steps,
        dtype="bfloat16",
        log_every=max(arguments.steps // WARM, 1),
        checkpoint_every=10**6,
        eval_every_epoch=False,
        **fields,
    )
    model = scratch(**MODELS[arguments.model])
    found = run_stage(traced_and_trained, config, folder / "train", model=model, packed=packed)
    return {
        **steady(found),
        "memory": found.figures["device_memory_bytes"],
        "loss": found.artifact.meta["metrics"]["train_loss"],
    }


def steady(found: Result) -> dict[str, float]:
    """Seconds a step between the first log and the last."""
    said = [point for point in found.said("metrics") if "loss" in point["values"]]
    first, last = said[0], said[-1]
    return {"seconds": (last["time"] - first["time"]) / (last["step"] - first["step"])}


def theirs(arguments: argparse.Namespace, fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        default_data_collator,
    )

    data = columns(arguments)
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(data["input_ids"], data["labels"], strict=True)]
    config = AutoConfig.for_model(**MODELS[arguments.model], vocab_size=VOCABULARY[arguments.model])
    kind = AutoModelForCausalLM if arguments.model == "llama" else AutoModelForSequenceClassification
    config.use_cache = False
    torch.manual_seed(0)
    model = kind.from_config(config, attn_implementation="sdpa")
    times: dict[int, float] = {}

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step in (arguments.steps // WARM, arguments.steps):
                torch.cuda.synchronize()
                times[state.global_step] = time.perf_counter()

    options = TrainingArguments(
        str(folder / "hf"),
        max_steps=arguments.steps,
        per_device_train_batch_size=arguments.batch,
        bf16=True,
        optim="adamw_torch_fused",
        logging_steps=arguments.steps,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=2,
        dataloader_drop_last=True,
        **fields,
    )
    trainer = Trainer(model, options, train_dataset=rows, data_collator=default_data_collator, callbacks=[Clock()])
    loss = trainer.train().metrics["train_loss"]
    (first, began), (last, ended) = sorted(times.items())
    return {"seconds": (ended - began) / (last - first), "memory": torch.cuda.max_memory_allocated(), "loss": loss}


def flops(arguments: argparse.Namespace) -> float:
    """Of one update."""
    size = MODELS[arguments.model]
    width, layers, inner, heads = (
        size[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
    )
    narrow = size.get("num_key_value_heads", heads) / heads
    attention = width * width * (2 + 2 * narrow)
    weights = layers * (attention + (3 if arguments.model == "llama" else 2) * width * inner)
    weights += width * (VOCABULARY["llama"] if arguments.model == "llama" else 0)
    tokens = arguments.batch * arguments.length
    return tokens * (6 * weights + 12 * layers * width * arguments.length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="llama")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--documents", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[*OURS, *THEIRS])
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        return inner(arguments)
    return compare(arguments)


def inner(arguments: argparse.Namespace) -> None:
    """One way, in this process."""
    (name,) = arguments.only
    with tempfile.TemporaryDirectory() as folder:
        run = ours if name in OURS else theirs
        print(json.dumps(run(arguments, {**OURS, **THEIRS}[name], Path(folder))))


def compare(arguments: argparse.Namespace) -> None:
    import torch

    from trnflow.tasks.training.device_kinds import KINDS
    from trnflow.tasks.training.graphs.flops import mfu

    device = torch.cuda.get_device_name()
    print(f"{arguments} on {device}, torch {torch.__version__}")
    rates: dict[str, float] = {}
    for name in arguments.only:
        command = [sys.executable, "-m", "tests.bench.gpu", "--inner"]
        for option in ("model", "batch", "length", "steps", "documents"):
            command += [f"--{option}", str(getattr(arguments, option))]
        environment = {**os.environ, "USE_TORCH_XLA": "0"}
        done = subprocess.run(
            [*command, "--only", name], capture_output=True, text=True, env=environment, cwd=PROJECT, check=False
        )
        if done.returncode:
            print(f"{name:<22} failed: {' | '.join(done.stderr.strip().splitlines()[-4:])[-600:]}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        rates[name] = arguments.batch * arguments.length / found["seconds"]
        share = mfu(flops(arguments) / found["seconds"], KINDS["cuda"].peak_flops(device), 1).get("mfu", float("nan"))
        print(
            f"{name:<22} {rates[name]:9.0f} tokens/s {arguments.batch / found['seconds']:8.1f} samples/s  MFU {share:.3f} "
            f"{found['seconds'] * 1e3:8.1f} ms a step {found['memory'] / 2**30:6.1f} GiB  loss {found['loss']:.4f}",
            flush=True,
        )
    if "HF Trainer" in rates:
        print(
            "tokens/s against HF Trainer:", {name: round(rate / rates["HF Trainer"], 2) for name, rate in rates.items()}
        )


if __name__ == "__main__":
    main()
