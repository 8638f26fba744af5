"""Every graph is made of operators that AWS publishes for Trainium, or of named exceptions, and none has a float64.

The list is AWS's for XLA (Neuron documentation, "Supported operators [XLA]", what `neuron-cc list-operators --framework XLA`
prints); AWS publishes no newer one of HLO's operators.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.run_stage import run_stage, traced_and_trained
from tests.training.toys import BERT, LLAMA, packed_classes, packed_lm, scratch
from tests.training.xla.hlo import Module, dumped, traced
from tests.training.xla.replicas import ReplicasConfig, per_device, replicated
from trnflow.tasks.train import TrainConfig

pytestmark = [pytest.mark.slow, pytest.mark.xla]  # one costly fixture for the whole file

PUBLISHED = {
    "abs", "add", "all-gather", "all-reduce", "and", "atan2", "batch-norm-grad", "batch-norm-inference",
    "batch-norm-training", "broadcast", "ceil", "clamp", "compare", "concatenate", "constant", "convert", "cosine",
    "divide", "dot", "dynamic-update-slice", "exponential", "floor", "gather", "get-tuple-element", "iota", "log",
    "maximum", "minimum", "multiply", "negate", "not", "pad", "power", "reduce", "reshape", "rng", "rng-bit-generator",
    "rsqrt", "scatter", "select", "shift-right-logical", "sign", "sine", "slice", "sqrt", "subtract", "tanh",
    "transpose", "tuple",
}  # fmt: skip
EXCEPTIONS = {
    "parameter": "an input of the graph",
    "custom-call Sharding": "an annotation, which the partitioner removes; custom calls as such are published",
    "opt-barrier": "computes nothing: it keeps remat's second forward pass apart from the first (torch_xla's own checkpoint)",
    "logistic": "SiLU: AWS's own Llama tutorials compute it on Trainium",
    "erf": "GELU: AWS's own BERT tutorials compute it on Trainium",
    "reduce-scatter": "ZeRO-1 of a process a core: AWS's own ZeroRedundancyOptimizer takes it",
}
"""Operator -> why it may stand in a graph though AWS's list lacks it."""
ON_THE_CPU = {"bitcast-convert", "call", "remainder"}
"""Of stochastic rounding, which on device neuron is a plain cast."""

LLAMA_LAYOUT: dict[str, Any] = {"devices": 4, "tensor_parallel_size": 2, "sequence_parallel": True, "zero1": True}
GRAPHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {**LLAMA_LAYOUT, "remat": True, "dtype": "bfloat16", "micro_batch": 1}),
    "lora": (LLAMA, {**LLAMA_LAYOUT, "method": "lora", "lora": {"dropout": 0.1}, "label_smoothing": 0.1}),
    "adafactor": (LLAMA, {"devices": 2, "optimizer": "adafactor", "dtype": "bfloat16", "stochastic_rounding": True}),
    "bert": (BERT, {"devices": 2, "dtype": "bfloat16", "remat": True, "micro_batch": 2}),
    "weighted": (BERT, {"class_weights": "balanced", "label_smoothing": 0.1, "max_grad_norm": None}),
}  # BERT's dropout is on


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Module]]:
    """All that was compiled, by training: all of its steps, evaluation, saving and what moves data."""
    found = {}
    for name, (model, fields) in GRAPHS.items():
        folder = tmp_path_factory.mktemp(name)
        rows = packed_lm(folder / "rows", rows=8) if model is LLAMA else packed_classes(folder / "rows", 8, [8])
        config = TrainConfig(global_batch=8, epochs=1, **fields)
        with dumped(folder / "hlo"):
            run_stage(traced_and_trained, config, folder / "run", model=scratch(**model), packed=rows)
        found[name] = traced(folder / "hlo")
    folder = tmp_path_factory.mktemp("replicas")
    config = per_device(devices=2, zero1=True, global_batch=8, epochs=1)
    with dumped(folder / "hlo"):
        packed = packed_classes(folder / "rows", 8, [8])
        replicated(ReplicasConfig(configs=(config,), devices=2), folder / "run", model=scratch(**BERT), packed=packed)
    return {**found, "replicas": traced(folder / "hlo")}


@pytest.mark.parametrize("name", [*GRAPHS, "replicas"])
def test_operators_are_published_or_named(name: str, graphs: dict[str, list[Module]]) -> None:
    allowed = PUBLISHED | EXCEPTIONS.keys() | (ON_THE_CPU if name == "adafactor" else set())
    for module in graphs[name]:
        assert module.operators <= allowed
    assert any("dot" in module.operators for module in graphs[name])


@pytest.mark.parametrize("name", [*GRAPHS, "replicas"])
def test_no_graph_has_a_float64(name: str, graphs: dict[str, list[Module]]) -> None:
    """Trainium has none. `torch.isfinite` brought it into every update, label smoothing into every loss."""
    for module in graphs[name]:
        assert "f64" not in module.types


def test_every_exception_is_needed(graphs: dict[str, list[Module]]) -> None:
    met = {operator for modules in graphs.values() for module in modules for operator in module.operators}
    assert met >= EXCEPTIONS.keys() | ON_THE_CPU
