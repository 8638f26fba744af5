"""Training measured and estimated: what it holds, beyond what the process held before there was a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tasks.artifact import Input, Meta, Source
from tasks.stage import Workdir, stage
from tasks.training.config import TrainConfig, environ, ranks
from tests.training.run_stage import run_stage
from tests.training.toys import LLAMA_12M, minilm, pretrained, scratch, write_packed

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
    "llama-remat": Case("llama", 4, 512, {"remat": True}),
    "llama-zero1": Case("llama", 4, 512, {"devices": 2, "zero1": True}),
    "llama-fsdp": Case("llama", 4, 512, {"devices": 2, "fsdp": True}),
    "llama-tp": Case("llama", 4, 512, {"devices": 2, "tensor_parallel_size": 2}),
    "llama-sp": Case("llama", 4, 512, {"devices": 2, "tensor_parallel_size": 2, "sequence_parallel": True}),
    "bert": Case("bert", 4, 128, {}),
    "bert-bf16": Case("bert", 4, 128, {"dtype": "bfloat16"}),
}


class Figures(NamedTuple):
    """Bytes of a device, beyond what a process takes before the model. heap: as `held`, under the worker's own allocator."""

    held: int
    trace: int
    plan: int
    heap: int | None


def returning(config: TrainConfig) -> dict[str, str]:
    """The worker's variables, but every tensor is its own mapping, which goes when the tensor goes: then what is resident is
    what is held. The worker's heap keeps holes."""
    plain = {name: value for name, value in environ(config).items() if not name.startswith("MALLOC")}
    return {**plain, "MALLOC_MMAP_THRESHOLD_": "65536"}


@stage(kind="checkpoint", process=True, environ=returning, ranks=ranks)
def held(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    return _growth(config, model, packed)


@stage(kind="checkpoint", process=True, environ=environ, ranks=ranks)
def heap(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    return _growth(config, model, packed)


def _growth(config: TrainConfig, model: Source, packed: Input) -> Meta:
    """{"growth": bytes} of the largest rank."""
    import torch

    from tasks.training.engine import make_engine
    from tasks.training.inventory import Ledger, blank
    from tasks.training.model import build
    from tasks.training.optim import scalars
    from tasks.training.ranks import joined

    torch.set_num_threads(config.resolved_threads)
    build(model, packed, seed=0, weights=False)
    torch.nn.Linear(64, 64)(torch.randn(64, 64)).sum().backward()
    length, task = packed.meta["lengths"][-1], packed.meta["task"]
    with joined(config) as world:
        before = _reset()
        engine = make_engine(config, build(model, packed, seed=0, weights=True), Ledger(), None, world)
        for step in range(UPDATES):
            batch = blank(config.global_batch, length, task)
            engine.fetch([engine.train(batch, scalars(config, step, UPDATES, batch.supervised), seed=step)])
        grown = world.gather(_resident("VmHWM") - before)
    return {"growth": max(grown or [0])}


@stage(kind="graphs", process=True, environ=environ)
def estimated(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    from tasks.training.estimates import of_model, of_numbers

    exact = of_model(config, model, packed, out)
    rough = of_numbers(config, model, packed.meta)
    assert exact is not None and rough is not None
    return {"trace": exact.to_json(), "plan": rough.to_json()}


def figures(case: Case, folder: Path, *, with_heap: bool = False) -> Figures:
    model, packed = inputs(case, folder)
    config = TrainConfig(engine="native", global_batch=case.rows, threads=1, **case.fields)

    def meta(function: Any) -> Meta:
        return run_stage(function, config, folder / function.__name__, model=model, packed=packed).artifact.meta

    said = meta(estimated)
    trace, plan = (said[way]["total"] - said[way]["runtime"] for way in ("trace", "plan"))
    return Figures(meta(held)["growth"], trace, plan, meta(heap)["growth"] if with_heap else None)


def inputs(case: Case, folder: Path) -> tuple[Source, Input]:
    blank = np.zeros((case.rows, case.length), np.int32)
    columns = {"input_ids": blank, "segment_ids": blank + 1, "position_ids": blank}
    if case.model == "llama":
        splits = {"train": {case.length: {**columns, "labels": blank}}}
        return scratch(**LLAMA_12M), write_packed(folder / "packed", "causal_lm", None, splits, vocabulary=VOCABULARY)
    splits = {"train": {case.length: {**columns, "labels": blank[:, 0]}}}
    packed = write_packed(folder / "packed", "classification", ["a", "b"], splits, vocabulary=30522)
    return (pretrained(minilm()) if case.model == "minilm" else scratch(**BERT)), packed


def _reset() -> int:
    """Let the peak begin anew; what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) * 1024
