"""The latency of each runner of a model: the weights, and their StableHLO export by jax, IREE and torch_xla.

    python -m tests.bench.bench_latency [--layers 6] [--hidden 384] [--length 128] [--calls 20]

A BERT classifier with random weights (by default of the size of MiniLM, but for the vocabulary) reads one row of `length`
tokens at a time. Each runner has a process of its own; one call before the others compiles. torch_xla compiles at every call.
Needs `make clients`. On a busy machine compare the processor's milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import PROJECT
from tests.helpers import small_models
from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation.models import EAGER
from trnflow.tasks.system.model_process import ENVIRON

TIMED = """
import json, sys, time
import numpy as np
folder, length, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows = {"input_ids": np.arange(length)[None] + 10, "attention_mask": np.ones((1, length), np.int64)}
%s
run()
wall, begun = [], time.process_time()
for _ in range(calls):
    start = time.perf_counter()
    run()
    wall.append(1000 * (time.perf_counter() - start))
cpu = 1000 * (time.process_time() - begun) / calls
print(json.dumps([float(np.percentile(wall, 50)), float(np.percentile(wall, 95)), cpu]))
"""
WEIGHTS = """
import torch
from trnflow.tasks.evaluation.models import load_model
model, given = load_model(Path(folder), "classification"), {name: torch.from_numpy(value) for name, value in rows.items()}
@torch.inference_mode()
def run():
    return model(**given).logits.numpy()
"""
TORCH_XLA = """
import torch
from pathlib import Path
from trnflow.tasks.export.stablehlo import load_stablehlo
program, given = load_stablehlo(Path(folder)), [torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")]
assert not program.compiles_once
def run():
    return program(*given).numpy()
"""
LOADER = """
sys.path.insert(0, folder)
import load_%s as loader
call = loader.load(folder, length)
def run():
    return np.asarray(call(**rows))
"""


def main() -> None:
    """Make the model and its export, and print a table of the runners."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("layers", 6), ("hidden", 384), ("length", 128), ("calls", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        weights, export = _made(Path(folder), options)
        print("| runner | p50 ms | p95 ms | processor ms a call |\n|---|---|---|---|")
        for name, script, model, client in (
            ("weights, eager PyTorch", WEIGHTS, weights, ""),
            ("export, jax", LOADER % "jax", export, "jax"),
            ("export, IREE", LOADER % "iree", export, "iree"),
            ("export, torch_xla", TORCH_XLA, export, ""),
        ):
            figures = _timed(TIMED % script, client, str(model), str(options.length), str(options.calls))
            print(f"| {name} | {' | '.join(f'{value:.1f}' for value in figures)} |", flush=True)


def _made(folder: Path, options: argparse.Namespace) -> tuple[Path, Path]:
    """(the model's folder, its export's)."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": options.hidden, "intermediate_size": 4 * options.hidden, "num_attention_heads": 12}
    config = BertConfig(vocab_size=1000, num_hidden_layers=options.layers, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder / "model")
    weights: Input = small_models.model_input(folder / "model", "classification", [options.length], small_models.LABELS)
    settings = {"batch": 1, "length": options.length}
    call = small_models.call("trnflow.tasks.export_neuron:export_neuron", settings, folder / "export", weights=weights)
    (result,) = small_models.run_calls([call], folder)
    assert "meta" in result, result
    return weights.path, folder / "export"


def _timed(script: str, client: str, *arguments: str) -> list[float]:
    """[p50, p95, processor] milliseconds of a call. client: the folder of `.clients` that runs alone, "" for this
    environment, which compiles as the stages do: without XLA's optimisation."""
    path = PROJECT / ".clients" / client if client else PROJECT
    environ = {**os.environ, **EAGER, **({} if client else ENVIRON), "PYTHONPATH": str(path)}
    command = [sys.executable, *(["-S"] if client else []), "-P", "-c", script, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
