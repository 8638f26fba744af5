"""The memory that an export takes beside its weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.export_neuron import environ

pytestmark = pytest.mark.xla

EXPORT = """
import json, sys, threading, time
from pathlib import Path
import torch_xla, torch_xla.stablehlo, torch
from transformers.models.llama import LlamaForCausalLM
from trnflow.tasks.artifact import Input
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.export_neuron import export_neuron
from tests.helpers.small_models import workdir

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def watch():
    while True:
        peak[0] = max(peak[0], resident())
        time.sleep(0.01)

torch_xla.device()
peak = [resident()]
before = peak[0]
threading.Thread(target=watch, daemon=True).start()
weights = Path(sys.argv[1])
meta = {"task": "causal_lm", "labels": None, "lengths": [16], "dtype": "float32"}
export_neuron(ExportConfig(), Input(weights, "model", meta, "sha256:0"), workdir(Path(sys.argv[2])))
size = sum(file.stat().st_size for file in weights.glob("*.safetensors"))
print(json.dumps([peak[0] - before, size]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_export_takes_one_and_a_half_times_the_weights(tmp_path: Path) -> None:
    """Resident memory above that of the imports, mapped files included; 0.9 GB of weights in three shards."""
    import os

    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8000, hidden_size=1024, num_hidden_layers=18, num_attention_heads=16, num_key_value_heads=8,
        intermediate_size=2816, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model", max_shard_size="400MB")
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "model"), str(tmp_path / "out")]
    variables = {**os.environ, **environ(ExportConfig()), "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    took, size = json.loads(done.stdout.splitlines()[-1])
    assert took < 1.5 * size
