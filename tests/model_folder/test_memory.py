"""The memory that consolidate takes: one copy of the largest tensor, LoRA's merge included."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.training.toys import BERT, packed_lm, scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.stage import write_json
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.checkpoint.shards import write
from trnflow.tasks.training.model.adapters import adapt, adapter_document
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.model.lora import CONFIG
from trnflow.tasks.training.shared_types import PARAMETER, Built, TensorSlice

SHARDS = 8
MB = 10**6
CONSOLIDATE = """
import json, sys, threading, time
from pathlib import Path
import torch
from transformers.models.llama import LlamaForCausalLM
from trnflow.tasks.artifact import Input
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from tests.helpers.small_models import workdir
from tests.training.toys import pretrained, scratch

def anonymous():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)

folder, method, dtype = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
meta = {"task": "causal_lm", "labels": None, "lengths": [16], "method": method}
base = pretrained(folder / "base") if method == "lora" else scratch()
torch.ones(256, 256) @ torch.ones(256, 256)  # starts the threads
peak = [anonymous()]
before = peak[0]
threading.Thread(target=watch, daemon=True).start()
begin = time.perf_counter()
shards = Input(folder / method, "checkpoint", meta, "sha256:0")
consolidate(ConsolidateConfig(dtype=dtype), shards, base, out=workdir(folder / "out"))
print(json.dumps([peak[0] - before, time.perf_counter() - begin]))
"""


def write_checkpoint(folder: Path, built: Built) -> None:
    """Write what training leaves behind, each matrix in as many slices as there are shards."""
    slices = []
    for name, value in built.trained().items():
        pieces = value.detach().chunk(SHARDS) if value.dim() == 2 and value.shape[0] % SHARDS == 0 else [value.detach()]
        for device, piece in enumerate(pieces):
            start = (device * pieces[0].shape[0],) + (0,) * (value.dim() - 1)
            slices.append(TensorSlice(PARAMETER + name, device, start, tuple(value.shape), piece))
    write(folder, slices, {})
    write_json(folder / "config.json", built.config)
    write_json(folder / "tokenizer" / "tokenizer_config.json", {})


def consolidated(folder: Path, method: str, dtype: str) -> tuple[float, float]:
    """Run consolidate in a process of its own. Return (the peak of anonymous memory above its imports in bytes, seconds)."""
    variables = {**os.environ, "PYTHONPATH": str(PROJECT), "USE_TORCH_XLA": "0"}
    command = [sys.executable, "-c", CONSOLIDATE, str(folder), method, dtype]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    took, seconds = json.loads(done.stdout.splitlines()[-1])
    return took, seconds


def filled(config: TrainConfig, packed: Input, **sizes: Any) -> Built:
    """Return a model ready for training whose numbers are all alike: drawing them would take most of the test's time."""
    built = adapt(config, build(scratch(**sizes), packed, seed=0, weights=False))
    built.model.to_empty(device="cpu").tie_weights()
    for parameter in built.parameters().values():
        parameter.data.fill_(0.01)
    return built


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("method", "dtype", "family"), [("full", "bfloat16", "gpt_neox"), ("lora", "float32", "llama")]
)
def test_consolidate_takes_the_largest_tensor(method: str, dtype: str, family: str, tmp_path: Path) -> None:
    """Some 90 M parameters: 370 MB, of which the embedding is 74. GPT-NeoX's head is published under another name."""
    sizes = {**BERT, "model_type": family, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8}
    packed = packed_lm(tmp_path / "packed")
    packed.meta["vocab_size"] = 24_000
    if method == "lora":
        filled(TrainConfig(), packed, **sizes).model.save_pretrained(tmp_path / "base", max_shard_size="200MB")
    lora = {"rank": 8, "targets": "all-linear"} if method == "lora" else None
    built = filled(TrainConfig(method=method, lora=lora), packed, **sizes)
    write_checkpoint(tmp_path / method, built)
    if method == "lora":
        write_json(tmp_path / method / CONFIG, adapter_document(built))
    largest = max(math.prod(value.shape) for value in built.parameters().values())
    count = sum(value.numel() for value in built.parameters().values())
    del built
    took, seconds = consolidated(tmp_path, method, dtype)
    print(f"{family} {method} {dtype}: {count / 1e6:.0f} M parameters, {took / MB:.0f} MB, {seconds:.1f} s")
    assert count > 7e7 and took < 4 * largest + 100 * MB
