"""Training measured and traced: the memory it takes, beyond what the process took before the model was built."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.training.run_stage import run_stage
from tests.training.toys import LLAMA_12M, minilm, pretrained, scratch, write_packed
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.training.config import TrainConfig, ranks
from trnflow.tasks.training.environment import environ
from trnflow.tasks.training.memory.trace_process import trace_in_process

BERT: dict[str, Any] = {"model_type": "bert", "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
VOCABULARY = 8192
UPDATES = 2


class Case(NamedTuple):
    """rows: of a global batch; length: tokens a row."""

    model: str
    rows: int
    length: int
    fields: dict[str, Any]


CASES = {
    "minilm": Case("minilm", 16, 128, {}),
    "minilm-4-by-4": Case("minilm", 16, 128, {"micro_batch": 4}),
    "llama": Case("llama", 4, 512, {}),
    "llama-bf16": Case("llama", 2, 512, {"dtype": "bfloat16"}),
    "llama-rounded": Case("llama", 1, 64, {"dtype": "bfloat16", "stochastic_rounding": True}),
    "llama-masters": Case("llama", 1, 64, {"dtype": "bfloat16"}),
    "llama-masters-8-by-1": Case("llama", 8, 64, {"dtype": "bfloat16", "micro_batch": 1}),
    "llama-fsdp-4-by-1": Case("llama", 8, 128, {"devices": 2, "fsdp": True, "micro_batch": 1}),
    "llama-fsdp-bf16-4-by-1": Case(
        "llama", 8, 128, {"devices": 2, "fsdp": True, "micro_batch": 1, "dtype": "bfloat16"}
    ),
    "llama-remat": Case("llama", 4, 512, {"remat": True}),
    "llama-zero1": Case("llama", 4, 512, {"devices": 2, "zero1": True}),
    "llama-fsdp": Case("llama", 4, 512, {"devices": 2, "fsdp": True}),
    "llama-fsdp-4-ranks": Case("llama", 16, 32, {"devices": 4, "fsdp": True, "micro_batch": 1}),
    "llama-tp": Case("llama", 4, 512, {"devices": 2, "tensor_parallel_size": 2}),
    "llama-sp": Case("llama", 4, 512, {"devices": 2, "tensor_parallel_size": 2, "sequence_parallel": True}),
    "bert": Case("bert", 4, 128, {}),
    "bert-bf16": Case("bert", 4, 128, {"dtype": "bfloat16"}),
}


class Figures(NamedTuple):
    """Bytes of a device, beyond what a process takes before the model. heap: as `held`, under the worker's own allocator."""

    held: int
    traced: int
    heap: int | None


def returning(config: TrainConfig) -> dict[str, str]:
    """The worker's variables, but every tensor is its own mapping, which goes when the tensor goes: then what is resident is
    what is held. The worker's heap keeps holes."""
    plain = {name: value for name, value in environ(config).items() if not name.startswith("MALLOC")}
    return {**plain, "MALLOC_MMAP_THRESHOLD_": "65536"}


@stage(kind="checkpoint", environ=returning, ranks=ranks)
def held(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    return _growth(config, model, packed)


@stage(kind="checkpoint", environ=environ, ranks=ranks)
def heap(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    return _growth(config, model, packed)


def _growth(config: TrainConfig, model: Source, packed: Input) -> Meta:
    """{"growth": bytes} of the largest rank."""
    import torch

    from trnflow.tasks.training.choose_engine import join_ranks, make_engine
    from trnflow.tasks.training.graph_registry import GraphRegistry
    from trnflow.tasks.training.graphs.inventory import blank
    from trnflow.tasks.training.model.build import build
    from trnflow.tasks.training.optim.optimizer import scalars

    torch.set_num_threads(config.resolved_threads)
    build(model, packed, seed=0, weights=False)
    torch.nn.Linear(64, 64)(torch.randn(64, 64)).sum().backward()
    with join_ranks(config) as world:
        before = reset()
        engine = make_engine(config, build(model, packed, seed=0, weights=True), GraphRegistry(), None, world)
        for step in range(UPDATES):
            batch = blank(config.global_batch, packed.meta["lengths"][-1], packed.meta)
            engine.fetch([engine.train(batch, scalars(config, step, UPDATES, batch.supervised), seed=step)])
        grown = world.gather(resident("VmHWM") - before)
    return {"growth": max(grown or [0])}


def figures(case: Case, folder: Path, *, with_heap: bool = False) -> Figures:
    model, packed = inputs(case, folder)
    config = TrainConfig(engine="native", global_batch=case.rows, threads=1, **case.fields)

    def meta(function: Any) -> Meta:
        return run_stage(function, config, folder / function.__name__, model=model, packed=packed).artifact.meta

    memory = trace_in_process(config, model, packed.meta, None).memory
    assert memory is not None
    traced = memory.total - memory.runtime
    return Figures(meta(held)["growth"], traced, meta(heap)["growth"] if with_heap else None)


def inputs(case: Case, folder: Path) -> tuple[Source, Input]:
    blank = np.zeros((case.rows, case.length), np.int32)
    columns = {"input_ids": blank, "segment_ids": blank + 1, "position_ids": blank}
    if case.model == "llama":
        splits = {"train": {case.length: {**columns, "labels": blank}}}
        return scratch(**LLAMA_12M), write_packed(folder / "packed", "causal_lm", None, splits, vocabulary=VOCABULARY)
    splits = {"train": {case.length: {**columns, "labels": blank[:, 0]}}}
    packed = write_packed(folder / "packed", "classification", ["a", "b"], splits, vocabulary=30522)
    return (pretrained(minilm()) if case.model == "minilm" else scratch(**BERT)), packed


def reset() -> int:
    """Let the peak begin anew; what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) * 1024
