"""What a lowered graph is made of: no custom call, which only XLA could run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.conftest import PROJECT
from trnflow.tasks.evaluation.models import EAGER
from trnflow.tasks.export.lowering import custom_calls, erf
from trnflow.tasks.system.model_process import ENVIRON

pytestmark = pytest.mark.xla

LOWER = """
import json, torch
from transformers.modeling_outputs import CausalLMOutput
from trnflow.tasks.errors import ModelError
from trnflow.tasks.export.lowering import lower

class Layers(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 8)
        self.function = function
    def forward(self, input_ids, attention_mask):
        return CausalLMOutput(logits=self.function(self.embed(input_ids) * attention_mask[..., None]))

functions = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "erf": torch.erf,
    "lgamma": torch.lgamma,
    "branch": lambda x: x if bool(x.sum() > 0) else -x,
}
found = {}
for name, function in functions.items():
    try:
        graph = lower(Layers(function).eval(), *torch.ones(2, 1, 16, dtype=torch.long))
        found[name] = graph.bytecode.hex()
    except ModelError as error:
        found[name] = error.message
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def lowered() -> dict[str, str]:
    environ = {**os.environ, **EAGER, **ENVIRON, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", LOWER], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "erf"])
def test_gelu_is_no_custom_call(name: str, lowered: dict[str, str]) -> None:
    bytecode = bytes.fromhex(lowered[name])
    assert b"StableHLO" in bytecode and b"custom_call" not in bytecode and b"mhlo.erf" not in bytecode


def test_an_operator_that_xla_lacks_is_named(lowered: dict[str, str]) -> None:
    """torch_xla would run it on the CPU while tracing, where the weights are placeholders."""
    assert lowered["lgamma"] == "Layers can't be lowered to StableHLO: XLA has no form of aten::lgamma"


def test_a_model_whose_code_needs_values_is_refused_with_the_reason(lowered: dict[str, str]) -> None:
    assert re.match(r"Layers can't be lowered to StableHLO: \S.{10}", lowered["branch"]), lowered["branch"]


def test_the_targets_of_custom_calls_are_named() -> None:
    assert custom_calls(b"ML\xefR..custom_call_v1\x00..mhlo.erf\x00mhlo.topk\x00") == ["mhlo.erf", "mhlo.topk"]
    assert custom_calls(b"ML\xefR..add_v1\x00 mhlo.is_dynamic\x00") == []


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 5e-7), ("bfloat16", 4e-3), ("float16", 5e-4)])
def test_erf_is_as_exact_as_its_dtype(dtype: str, allowed: float) -> None:
    import torch

    x = torch.linspace(-6, 6, 100001, dtype=torch.float64).to(getattr(torch, dtype))
    found = erf(x)
    assert found.dtype == x.dtype
    assert float((found.double() - torch.erf(x.double())).abs().max()) < allowed
    assert erf(torch.tensor([0.0, 100.0, -100.0])).tolist() == pytest.approx([0.0, 1.0, -1.0], abs=5e-7)
