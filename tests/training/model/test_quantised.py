"""A base in 8 or 4 bits: its weights are bitsandbytes' to the bit, and LoRA learns on it as on bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.training.memory.test_memory import row_meta
from tests.training.test_refusals import known, refuse
from tests.training.toys import LLAMA, scratch
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import MissingDependency, ModelError
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.memory.traced_memory import trace_memory
from trnflow.tasks.training.model.adapters import adapt
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.model.quantised import FORMATS, QuantisedLinear, rounded

KINDS = [*FORMATS]


def lora(kind: str | None, **more: Any) -> dict[str, Any]:
    fields = {"rank": 8, "alpha": 16, "targets": "all-linear", **({"base_dtype": kind} if kind else {})}
    return {"engine": "native", "method": "lora", "lora": fields, **more}


def test_an_nf4_layer_is_bitsandbytes_layer() -> None:
    """Output and input's gradient, in both dtypes that train."""
    import bitsandbytes

    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(3)
        linear = torch.nn.Linear(172, 64).to(dtype).requires_grad_(False)
        theirs = bitsandbytes.nn.Linear4bit(172, 64, compute_dtype=dtype, quant_type="nf4", compress_statistics=False)
        theirs.load_state_dict(linear.state_dict())
        theirs = theirs.to(dtype).to("cpu").train().requires_grad_(False)
        mine = QuantisedLinear(linear, "nf4", dtype)
        assert torch.equal(mine.weight, theirs.weight.data)
        outputs = []
        for layer in (mine, theirs):
            hidden = torch.arange(344.0).view(2, 172).sin().to(dtype).requires_grad_()
            layer(hidden).square().sum().backward()
            outputs.append((layer(hidden), hidden.grad))
        torch.testing.assert_close(*map(list, outputs), rtol=0, atol=0)


def test_int8_weights_are_those_of_bitsandbytes() -> None:
    import bitsandbytes

    torch.manual_seed(3)
    weight = torch.randn(64, 172, dtype=torch.float16)
    codes, scales = FORMATS["int8"].quantise(weight)
    theirs, stats, _ = bitsandbytes.functional.int8_vectorwise_quant(weight)
    assert torch.equal(codes, theirs) and torch.equal(scales[:, 0], stats)
    assert (rounded(weight, "int8", torch.float32) - weight).abs().max() < 0.51 * weight.abs().max() / 127
    assert not rounded(torch.zeros(2, 4), "int8", torch.bfloat16).any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_and_the_model_agree_on_the_bytes_of_the_base(kind: str) -> None:
    """A number of a layer takes 1 byte in int8 and 0.5625 in nf4; the rest, and LoRA, are as without."""
    wide = {**LLAMA, "hidden_size": 256, "intermediate_size": 1024}
    numbers = 2 * (4 * 256 * 256 + 3 * 256 * 1024)
    rows = row_meta(32)
    base, mine = (trace_memory(TrainConfig(**lora(k, dtype="bfloat16")), scratch(**wide), rows) for k in (None, kind))
    outputs = 2 * (4 * 256 + 2 * 1024 + 256)
    saved_bytes = 2 * numbers - (numbers + 4 * outputs if kind == "int8" else numbers // 2 + numbers // 64 * 4)
    assert base.parameters - mine.parameters == saved_bytes
    assert (base.optimizer, base.gradients) == (mine.optimizer, mine.gradients)
    meta = Input(Path(), "packed", rows, "")
    built = adapt(TrainConfig(**lora(kind)), build(scratch(**wide), meta, seed=0, weights=True))
    assert built.numbers == adapt(TrainConfig(**lora(None)), build(scratch(**wide), meta, seed=0, weights=True)).numbers
    assert not any("base_layer.weight" in name for name in built.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "xla"}, "lora.base_dtype=nf4 is for engine native"),
        ({"devices": 2, "fsdp": True}, "fsdp splits the layers that lora.base_dtype=nf4 quantises"),
        ({"devices": 2, "tensor_parallel_size": 2}, "tensor_parallel_size splits the layers"),
        ({"method": "full"}, "lora is set, and method is full"),
    ],
)
def test_what_a_quantised_base_can_t_be_trained_with_is_refused(fields: Meta, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**{**lora("nf4"), **fields})


def test_families_of_other_layers_are_refused_at_plan_and_when_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for family, what in (("gpt2", "Conv1D"), ("mixtral", "experts")):
        with pytest.raises(ModelError, match=f"train.lora.base_dtype=int8 quantises linear layers, and .* {what}"):
            refuse(known("causal_lm", model_type=family), **lora("int8"))
    refuse(known("causal_lm", model_type="qwen3"), **lora("int8"))
    with pytest.raises(
        ModelError, match="most weights of GPT2LMHeadModel would stay as they are, such as transformer.h.0"
    ):
        trace_memory(
            TrainConfig(**lora("int8")), scratch(model_type="gpt2", n_embd=32, n_layer=2, n_head=2), row_meta(16)
        )
    monkeypatch.setattr("trnflow.tasks.system.optional_packages.find_spec", lambda name: None)
    with pytest.raises(
        MissingDependency, match=r"base_dtype is nf4, and bitsandbytes .* Fix: pip install 'trnflow\[quantised\]'"
    ):
        rounded(torch.ones(2, 2), "nf4", torch.float32)
