"""Training in bf16 without fp32 masters: its losses are those with masters, in any layout, and copies of a weight stay alike.

Never run on a GPU or on Neuron."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
import torch

from tests.training.run_stage import run_in_turn, run_stage
from tests.training.toys import LLAMA, packed_lm, saved, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, ranks
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training.checkpoint.shards import Reader

STEPS = 5
COMMON: dict[str, Any] = {"global_batch": 8, "epochs": 1, "learning_rate": 1e-2, "log_every": 1, "dtype": "bfloat16"}
ROUNDED: dict[str, Any] = {**COMMON, "stochastic_rounding": True}
NATIVE, TP = {"engine": "native"}, {"tensor_parallel_size": 2}
LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 4, "alpha": 8, "targets": "all-linear"}}
LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "native": [NATIVE, {**NATIVE, "micro_batch": 2}],
    "two": [{**NATIVE, **TP}, {**NATIVE, "zero1": True}, {**NATIVE, "fsdp": True, "micro_batch": 1}],
    "xla": [{"devices": 2, "zero1": True}, {"devices": 2, **TP, "micro_batch": 4}],
}
XLA = [pytest.mark.nightly, pytest.mark.xla]
SLOW = [pytest.param(name, optimizer, method, marks=XLA if name == "xla" else pytest.mark.nightly)
    for name in LAYOUTS for optimizer, method in (("adafactor", {}), ("adamw", LORA))]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "optimizer", "method"),
    [("native", "adamw", {}), ("two", "adamw", {}), pytest.param("xla", "adamw", {}, marks=XLA), *SLOW],
)
def test_the_losses_are_those_with_masters(name: str, optimizer: str, method: dict[str, Any], tmp_path) -> None:
    inputs = {
        "model": saved(tmp_path / "base", scale=4.0, **LLAMA),
        "packed": packed_lm(tmp_path / "packed", rows=STEPS * 8),
    }
    devices = 2 if name != "native" else 1
    layouts = [{"devices": devices, "optimizer": optimizer, **method, **layout} for layout in LAYOUTS[name]]
    configs = [TrainConfig(**COMMON, **layouts[0]), *(TrainConfig(**ROUNDED, **layout) for layout in layouts)]
    masters, *found = run_in_turn(configs, tmp_path / "run", **inputs)
    for one in found:
        assert one.curve("loss") == pytest.approx(masters.curve("loss"), abs=0.02)
        reader = Reader(one.artifact.path)
        for weight in map(reader.tensor, reader.names):  # files of fp32, whose numbers bf16 holds
            assert weight.dtype == torch.float32 and torch.equal(weight.to(torch.bfloat16).float(), weight)


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def copies(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """After some steps: {"copies": [[name, where it lies in the whole, digest] of each part on each device]}."""
    import hashlib

    from trnflow.tasks.training.batches.sampler import Schedule, Split
    from trnflow.tasks.training.choose_engine import join_ranks, make_engine
    from trnflow.tasks.training.graph_registry import GraphRegistry
    from trnflow.tasks.training.model.build import build
    from trnflow.tasks.training.optim.optimizer import scalars

    def told(name: str, place: Any, value: torch.Tensor) -> list[str]:
        return [name, str(place), hashlib.sha256(value.detach().float().cpu().numpy().tobytes()).hexdigest()]

    with join_ranks(config) as world:
        built = build(model, packed, seed=0, weights=True)
        engine: Any = make_engine(config, built, GraphRegistry(), None, world)
        split = Split(packed, "train")
        schedule = Schedule(split.rows, config.global_batch, seed=0, last_batch="pad")
        for step in range(3):
            batch = split.read(schedule.address(step))
            engine.fetch([engine.train(batch, scalars(config, step, 9, batch.supervised), step)])
        if config.engine == "xla":
            import torch_xla.distributed.spmd as xs

            split_ones = {n: p for n, p in engine._parameters.items() if any(engine._specs[n])}
            shards = {n: xs.XLAShardedTensor(p.detach()).local_shards for n, p in split_ones.items()}
            return {"copies": [told(n, one.indices, one.data) for n, some in shards.items() for one in some]}
        from trnflow.tasks.training.layout.slices import piece_start
        from trnflow.tasks.training.native.sharding import local_tensor

        layout, named = engine._layout, built.parameters()
        places = {n: piece_start(layout.shapes[n], layout.specs[n], world) for n in layout.states}
        everywhere = world.gather({"mine": [told(n, place, local_tensor(named[n])) for n, place in places.items()]})
        return {"copies": [one for rank in everywhere or [] for one in rank["mine"]]}


@pytest.mark.parametrize(
    "layout",
    [
        {**NATIVE, **TP, "devices": 4, "zero1": True},
        pytest.param({**NATIVE, **TP, "devices": 4}, marks=pytest.mark.nightly),
        pytest.param({**NATIVE, **TP, "devices": 4, "fsdp": True, "optimizer": "adafactor"}, marks=pytest.mark.nightly),
        pytest.param({**TP, "devices": 4}, marks=XLA),
        pytest.param({**TP, "devices": 4, "zero1": True, "optimizer": "adafactor"}, marks=XLA),
    ],
    ids=str,
)
def test_copies_of_a_weight_stay_alike(layout: dict[str, Any], tmp_path) -> None:
    """Norms are whole on all four devices; a layer's parts lie on two each, unless FSDP splits them further."""
    packed = packed_lm(tmp_path / "packed", rows=24)
    found = run_stage(copies, TrainConfig(**ROUNDED, **layout), tmp_path / "run", model=scratch(**LLAMA), packed=packed)
    told = sorted(found.artifact.meta["copies"])
    counts = set()
    for place, same in groupby(told, lambda one: one[:2]):
        digests = [digest for _, _, digest in same]
        assert len(set(digests)) == 1, place
        counts.add(len(digests))
    assert max(counts) >= 2
