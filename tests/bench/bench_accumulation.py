"""FSDP with several passes an update: reduce gradients in each pass, as engine native does, or once an update.

    python -m tests.bench.bench_accumulation [--devices 2] [--passes 1,4,16]

A Llama of 19 M parameters on the CPU, a row of 128 tokens a rank and pass, gloo on one machine. seconds: of an update, the
median of five; held: by how much the peak of a rank's resident memory exceeds what was resident before the model was built.
To reduce once, a rank holds whole gradients in fp32 between the passes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.training.memory.measured_memory import Case, inputs, reset, resident, returning
from tests.training.run_stage import run_stage
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.training.config import TrainConfig, ranks

UPDATES = 6  # the first is not timed
LENGTH = 128


class Accumulated(StageConfig):
    """once: reduce gradients in the last pass of an update alone."""

    train: TrainConfig
    once: bool


@stage(kind="checkpoint", environ=lambda config: returning(config.train), ranks=lambda config: ranks(config.train))
def measured(config: Accumulated, model: Source, packed: Input, out: Workdir) -> Meta:
    """{"seconds": of an update, "held": bytes of the rank that holds most}."""
    import torch

    from trnflow.tasks.training.choose_engine import join_ranks
    from trnflow.tasks.training.graph_registry import GraphRegistry
    from trnflow.tasks.training.graphs.inventory import blank
    from trnflow.tasks.training.model.build import build
    from trnflow.tasks.training.native.engine import NativeEngine
    from trnflow.tasks.training.optim.optimizer import scalars

    train, taken = config.train, []
    torch.set_num_threads(1)
    build(model, packed, seed=0, weights=False)
    torch.nn.Linear(64, 64)(torch.randn(64, 64)).sum().backward()
    with join_ranks(train) as world:
        before = reset()
        built = build(model, packed, seed=0, weights=True)
        engine = NativeEngine(train, built, GraphRegistry(), None, world)
        passes, plain = [0], engine._loss

        def last_alone(*arguments: object) -> torch.Tensor:
            passes[0] += 1
            built.model.set_requires_gradient_sync(passes[0] % train.accumulation == 0)
            return plain(*arguments)  # type: ignore[arg-type]

        if config.once:
            engine._loss = last_alone
        for step in range(UPDATES):
            batch = blank(train.global_batch, LENGTH, packed.meta)
            begun = time.perf_counter()
            engine.fetch([engine.train(batch, scalars(train, step, UPDATES, batch.supervised), seed=step)])  # type: ignore[list-item]
            taken.append(time.perf_counter() - begun)
        held = world.gather(resident("VmHWM") - before)
    return {"seconds": statistics.median(taken[1:]), "held": max(held or [0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--passes", default="1,4,16")
    arguments = parser.parse_args()
    print(f"{'dtype':9} {'passes':>6} {'each: s':>8} {'MiB':>6} {'once: s':>8} {'MiB':>6}")
    for dtype in ("float32", "bfloat16"):
        for passes in map(int, arguments.passes.split(",")):
            case = Case("llama", passes * arguments.devices, LENGTH, {})
            train = TrainConfig(
                engine="native",
                devices=arguments.devices,
                fsdp=True,
                micro_batch=1,
                global_batch=case.rows,
                threads=1,
                dtype=dtype,
            )
            found = []
            for once in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    model, packed = inputs(case, Path(folder))
                    config = Accumulated(train=train, once=once)
                    meta = run_stage(measured, config, Path(folder) / "run", model=model, packed=packed).artifact.meta
                found += [f"{meta['seconds']:8.2f} {meta['held'] / 2**20:6.0f}"]
            print(f"{dtype:9} {passes:6} {' '.join(found)}", flush=True)


if __name__ == "__main__":
    from tests.bench import bench_accumulation  # a stage is found by its module's name

    bench_accumulation.main()
